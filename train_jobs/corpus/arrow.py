"""Conversion between Arrow columns and numpy arrays or Python lists, through their buffers.

Arrow's own `pa.array` and `to_numpy` import pandas if it is installed, which takes a third of a second per process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.artifacts.store_places import StorePath


def mapped_file(path: StorePath) -> pa.NativeFile:
    """Open an Arrow file for reading without copying; one by URL is read into memory."""
    return pa.memory_map(str(path)) if isinstance(path, Path) else pa.BufferReader(path.read_bytes())


def number_column(values: npt.NDArray[Any]) -> pa.Array:
    """Return an Arrow column of numbers [n]; contiguous input is not copied.

    Args:
        values: [n] of any integer or floating-point dtype, without nulls.
    """
    # A strided view has no single buffer that Arrow could point to.
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def text_column(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return an Arrow column of text [n], encoded as UTF-8."""
    # Offsets of 64 bits: a batch of long documents may exceed the 2 GiB that `string` can address.
    return bytes_column([text.encode() for text in texts]).view(pa.large_string())


def bytes_column(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Return an Arrow column of byte strings [n]."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


def numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return a column of numbers without nulls as a read-only array [n] that shares its memory."""
    return np.from_dlpack(column)
