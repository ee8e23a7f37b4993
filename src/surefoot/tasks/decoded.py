"""A task's images as arrays, by split; here no unfamiliar picture slips into training."""

from collections.abc import Callable, Mapping
from pathlib import Path

from surefoot.decoding.cache import Decoded
from surefoot.decoding.images import decode_images, decode_readable_images
from surefoot.decoding.pixels import Size
from surefoot.tasks.base import Split, Task, refuse_shared_content
from surefoot.tasks.images import ImageFiles

Tick = Callable[[int], None]
Decode = Callable[..., Decoded]


def decode_task(task: Task, size: Size, *, cache: Path, tick: Tick | None = None) -> Mapping[Split, Decoded]:
    """Every split's images; an error if one cannot be read, or if an unfamiliar one is also trained on.

    Samples that are arrays in memory need no decoding, and their splits are not among the result.
    """
    return _decode(task, size, decode_images, cache=cache, tick=tick)


def decode_readable_task(
    task: Task, size: Size, *, cache: Path, tick: Tick | None = None
) -> Mapping[Split, Decoded]:
    """The same, going on without the images that cannot be read."""
    return _decode(task, size, decode_readable_images, cache=cache, tick=tick)


def _decode(
    task: Task, size: Size, decode: Decode, *, cache: Path, tick: Tick | None
) -> Mapping[Split, Decoded]:
    decoded = {
        split: decode(samples.inputs.files(), size, cache=cache, tick=tick)
        for split, samples in task.splits.items()
        if isinstance(samples.inputs, ImageFiles)
    }
    refuse_shared_content(task, {split: list(each.contents) for split, each in decoded.items()})
    return decoded
