"""How this process handles memory."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
_LARGEST_KEPT = 32 << 20  # bytes; glibc allows no more
_KEPT = 256 << 20  # bytes
_STEP = 16 << 20  # bytes that are asked for at once


def keep_freed_memory() -> bool:
    """Lets the allocator keep arrays that are freed for the next ones, as far as it can be told to.

    glibc gives them back to the system, which clears every page of them before they can be used again: a tenth of the
    time of working on one batch of text after the other. Returns whether it was told.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wishes = ((_MMAP_THRESHOLD, _LARGEST_KEPT), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _STEP))
    return all([mallopt(*wish) for wish in wishes])  # noqa: C419  # each of them, whatever comes of the others
