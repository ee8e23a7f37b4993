"""How a task is registered, which published files it needs, and where and under which terms to get them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import ParseError

from surefoot.errors import InputError
from surefoot.io import refuse_special
from surefoot.lab.tasks.description import Unlabelled, unlabelled_samples
from surefoot.lab.tasks.task import Samples, Split, Task
from surefoot.predictions.arguments import checked
from surefoot.predictions.labels import LabelKind

UNLABELLED_LIMIT = 20_000  # an epoch uses a quarter of the training set; more would only fill the disk


@dataclass(frozen=True)
class Source:
    """A published data set."""

    title: str
    published: str
    terms: str
    citation: str


@dataclass(frozen=True)
class Place:
    """A file or folder that a task needs, at one of several possible paths below the root."""

    source: Source
    what: str
    paths: tuple[str, ...]
    optional: str = ""  # what is not possible without it; empty if the task needs it

    def find(self, root: Path) -> Path | None:
        """The first of its paths that exists."""
        return next((root / path for path in self.paths if (root / path).exists()), None)

    def require(self, root: Path) -> Path:
        """The first of its paths that exists; an error if there is none."""
        path = self.find(root)
        if path is None:
            raise InputError(
                f"{root}: no {self.what}; needed: {' or '.join(self.paths)} ({self.source.title}, "
                f"see {self.source.published})"
            )
        return path


@dataclass(frozen=True)
class Layout:
    """All files and folders of a task."""

    places: tuple[Place, ...]

    def missing(self, root: Path) -> list[Place]:
        """Those that the task needs and that do not exist."""
        return [place for place in self.places if not place.optional and place.find(root) is None]

    def sources(self) -> list[Source]:
        """The data sets, each once."""
        return list(dict.fromkeys(place.source for place in self.places))


@checked
@dataclass(frozen=True)
class TaskEntry:
    """A task in TASKS; a variant of it is named `name/variant`, and `name` alone is the first of them."""

    name: str
    title: str
    description: str
    load: Callable[[Path, str], Task]  # takes the root folder of published files, and the variant
    variants: tuple[str, ...] = ()
    layout: Layout | None = None  # None: the samples are made in memory, and no root is needed


def below(folders: tuple[str, ...], path: str) -> tuple[str, ...]:
    """A path below each of several folders.

    >>> below(("VOC2012", "."), "JPEGImages")
    ('VOC2012/JPEGImages', 'JPEGImages')
    """
    return tuple(f"{folder}/{path}".removeprefix("./") for folder in folders)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn an error while reading a published file into one sentence that names it."""
    try:
        refuse_special(file)
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError, ParseError) as error:
        reason = getattr(error, "strerror", None) or f"not as published ({type(error).__name__}: {error})"
        raise InputError(f"{file}: {reason}") from error


def unlabelled_split(place: Place, root: Path, kind: LabelKind, classes: int) -> dict[Split, Samples]:
    """The unlabelled split, if its folder exists: at most UNLABELLED_LIMIT images, drawn with seed 0."""
    folder = place.find(root)
    if folder is None:
        return {}
    return {Split.UNLABELLED: unlabelled_samples(Unlabelled(folder, UNLABELLED_LIMIT, 0), kind, classes)}


LFW_PLUS = Source(
    "LFW+",
    "http://biometrics.cse.msu.edu/Publications/Databases/MSU_LFW+/",
    "research use; on request from Michigan State University",
    "Han, Jain, Wang, Shan, Chen. Heterogeneous face attribute estimation. TPAMI 2018",
)
PETS = Source(
    "Oxford-IIIT Pets",
    "https://www.robots.ox.ac.uk/~vgg/data/pets/",
    "CC BY-SA 4.0",
    "Parkhi, Vedaldi, Zisserman, Jawahar. Cats and dogs. CVPR 2012",
)
AUTHORS = Source(
    "the authors' code",
    "https://zhizhongli.vision/projects/improving-confidence-estimates",
    "MIT",
    "Li, Hoiem. Improving confidence estimates for unfamiliar examples. CVPR 2020",
)
IMAGENET = Source(
    "ImageNet ILSVRC 2012",
    "https://image-net.org/challenges/LSVRC/2012/",
    "non-commercial research; after registration",
    "Russakovsky et al. ImageNet large scale visual recognition challenge. IJCV 2015",
)
VOC = Source(
    "PASCAL VOC 2012",
    "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
    "research use; Flickr terms for the images",
    "Everingham et al. The PASCAL visual object classes challenge: a retrospective. IJCV 2015",
)
COCO = Source(
    "MS COCO 2014",
    "https://cocodataset.org/#download",
    "annotations CC BY 4.0; Flickr terms for the images",
    "Lin et al. Microsoft COCO: common objects in context. ECCV 2014",
)
CELEBA = Source(
    "CelebA",
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    "non-commercial research",
    "Liu, Luo, Wang, Tang. Deep learning face attributes in the wild. ICCV 2015",
)
PLACES = Source(
    "Places365-Standard",
    "http://places2.csail.mit.edu/download.html",
    "non-commercial research and education",
    "Zhou, Lapedriza, Khosla, Oliva, Torralba. Places. TPAMI 2018",
)
WITHOUT_G = "no G-distillation without it"
