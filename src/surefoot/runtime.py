"""Seeds, threads and cores. Importing this does not load torch."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: object) -> int:
    """A seed from names and numbers, by sha256.

    >>> derive_seed("toy", 3, "order") == derive_seed("toy", 3, "order")
    True
    >>> derive_seed("toy", 3, "order") == derive_seed("toy", 3, "augmentation")
    False
    """
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: object, device: "torch.device | str" = "cpu") -> "torch.Generator":
    """A new generator, seeded from names and numbers."""
    import torch

    return torch.Generator(device=device).manual_seed(derive_seed(*parts))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: sums are the same on every machine, and small operations do not wait.

    Threads that wait for each other on a busy machine made a report five times slower.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
