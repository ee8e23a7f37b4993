"""Images become arrays."""

from surefoot.decoding.cache import Decoded, Unreadable, default_cache
from surefoot.decoding.images import decode_images, decode_readable_images, unreadable_text
from surefoot.decoding.pixels import Fit, Size

__all__ = [
    "Decoded",
    "Fit",
    "Size",
    "Unreadable",
    "decode_images",
    "decode_readable_images",
    "default_cache",
    "unreadable_text",
]
