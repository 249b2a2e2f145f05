"""Settings of glibc's memory allocator. By default it returns freed arrays to the system, which must clear every page
before the memory is used again.

Nothing here loads torch.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8  # of mallopt(3)
MEBIBYTE = 1 << 20
ARRAYS = {M_MMAP_THRESHOLD: 32 * MEBIBYTE, M_TRIM_THRESHOLD: 256 * MEBIBYTE, M_TOP_PAD: 16 * MEBIBYTE}
TENSORS = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 64 * MEBIBYTE}  # -1: never


def keep_freed_arrays(*, threads: bool = False) -> bool:
    """Keep up to 256 MiB of freed arrays of up to 32 MiB each; return whether the allocator accepted every setting.

    One batch of text follows another: it saves a tenth of the time of a preparation.

    Args:
        threads: whether a thread other than the main one does the work; call this before that thread starts.
    """
    # The settings apply to the main arena; a thread would use one of its own, which returns its memory.
    return _set({**ARRAYS, **({M_ARENA_MAX: 1} if threads else {})})


def keep_freed_tensors() -> bool:
    """Keep all freed memory of the main arena; return whether the allocator accepted every setting.

    Each micro batch frees gigabytes of tensors on a CPU, and the next one needs them again (docs/speed.md).
    """
    return _set(TENSORS)


def return_freed_memory() -> None:
    """Return freed memory to the system once, so that what is resident is in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set(settings: dict[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent on macOS and with musl
    return mallopt is not None and all([mallopt(*setting) for setting in settings.items()])  # noqa: C419  # set all
