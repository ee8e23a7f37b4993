"""Networks from timm, torchvision or a user's own function."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor, nn

from surefoot.errors import InputError
from surefoot.lab.networks.heads import LinearHead
from surefoot.lab.networks.network import HeadBuilder, Network, global_draws_from, initialise_linear
from surefoot.registry import searched_folders

INSTALL = "pip install 'surefoot[backbones]'"
LOGITS_ONLY = (
    "gives logits only; methods that use features or a head need a function that "
    "returns a surefoot.lab.networks.Network"
)


class LibraryNetwork(Network):
    """Another library's backbone, whose last layer was replaced by one of our heads."""

    head_name = "classifier"
    published_prefix = "features."

    def __init__(self, backbone: nn.Module, head: LinearHead, *, published_head: str) -> None:
        super().__init__()
        self.features = backbone
        self.classifier = head
        self._published_head = published_head

    @property
    def published_head(self) -> str:
        """The name of the layer that was replaced."""
        return self._published_head


class UserNetwork(Network):
    """A model from a user's function: images to logits, without a known head."""

    head_name = ""  # not known
    published_prefix = "model."

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def head(self) -> LinearHead:
        """Refused: which part of the model is the head is not known."""
        raise InputError(f"network {self.name!r} {LOGITS_ONLY}")

    def features(self, images: Tensor) -> Tensor:
        """The result of the model's own `features`, if it has one."""
        own: Callable[[Tensor], Tensor] | None = getattr(self.model, "features", None)
        if own is None:
            raise InputError(f"network {self.name!r} {LOGITS_ONLY}")
        return own(images)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes)."""
        logits: Tensor = self.model(images)
        return logits


def timm_network(name: str, head: HeadBuilder, generator: Generator, *, channels: int = 3) -> Network:
    """Any timm model by name, untrained; weights come from a file."""
    timm = _library("timm", f"timm:{name}")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    with global_draws_from(generator, torch.device("cpu")):
        whole = timm.create_model(name, pretrained=False, in_chans=channels)
        last = whole.default_cfg.get("classifier")
        whole.reset_classifier(0)
    published_head = last if isinstance(last, str) else "classifier"
    return _with_head(whole, int(whole.head_hidden_size), head, generator, published_head)


def torchvision_network(name: str, head: HeadBuilder, generator: Generator) -> Network:
    """Any torchvision classifier by name, untrained; its last linear layer is replaced."""
    models: Any = _library("torchvision", f"torchvision:{name}").models
    names = models.list_models(module=models)
    if name not in names:
        raise _unknown("torchvision", name, names)
    with global_draws_from(generator, torch.device("cpu")):
        backbone = models.get_model(name, weights=None)
    linear = [(path, part) for path, part in backbone.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError(f"torchvision model {name!r} does not end in a linear layer; allowed: ones that do")
    path, last = linear[-1]
    parent, _, own_name = path.rpartition(".")
    setattr(backbone.get_submodule(parent), own_name, nn.Identity())
    return _with_head(backbone, last.in_features, head, generator, path)


Importing = Callable[[str], ModuleType]  # a module by its name


def user_network(
    path: str, classes: int, generator: Generator, importing: Importing = import_module
) -> Network:
    """The network that `package.module:function` returns when called with `classes=`."""
    module_name, _, name = path.partition(":")
    try:
        module = importing(module_name)
    except (ImportError, ValueError, SyntaxError) as error:
        searched = ", ".join((*searched_folders(), "Python's own path (PYTHONPATH)"))
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        where = f"; searched: {searched}" if absent else ""
        raise InputError(f"{path}: cannot import {module_name!r}: {error}{where}") from error
    function: object = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{path}: module {module_name!r} has no function {name!r}")
    try:
        inspect.signature(function).bind(classes=classes)
    except TypeError as error:
        raise InputError(f"{path} cannot be called with classes={classes}: {error}") from error
    with global_draws_from(generator, torch.device("cpu")):
        built = function(classes=classes)
    if not isinstance(built, nn.Module):
        raise InputError(f"{path} returned {type(built).__name__}; allowed: a torch.nn.Module")
    return built if isinstance(built, Network) else UserNetwork(built)


def _with_head(
    backbone: nn.Module, width: int, head: HeadBuilder, generator: Generator, published_head: str
) -> LibraryNetwork:
    with torch.device("meta"):
        new_head = head(width)
    new_head = new_head.to_empty(device="cpu")
    for module in new_head.modules():
        if isinstance(module, nn.Linear):
            initialise_linear(module, generator)
    return LibraryNetwork(backbone, new_head, published_head=published_head)


def _library(library: str, name: str) -> Any:
    try:
        import_module("torchvision")  # timm needs it too, but its error is less clear
        return import_module(library)
    except ImportError as error:
        raise InputError(f"network {name!r} needs {library}, got: {error}; install it: {INSTALL}") from error
    except RuntimeError as error:  # its compiled part is for another build of torch
        raise InputError(
            f"network {name!r} needs a torchvision that fits torch {torch.__version__}, got: {error}; "
            "install both from one source"
        ) from error


def _unknown(library: str, name: str, names: list[str]) -> InputError:
    near = get_close_matches(name, names, n=5, cutoff=0.5)
    have = f"nearest: {', '.join(near)}" if near else f"it has {len(names)} others"
    return InputError(f"unknown {library} model {name!r}; {have}")
