"""Columns of Arrow, converted from and to numpy and Python by their buffers.

Arrow's own `pa.array` and `to_numpy` import pandas if it is installed: a third of a second for every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def number_column(values: npt.NDArray[Any]) -> pa.Array:
    """Return a column of integers [n], without copying contiguous ones."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def text_column(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return a column of text [n]."""
    return bytes_column([text.encode() for text in texts]).view(pa.large_string())


def bytes_column(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Return a column of bytes [n]."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


def numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return a view [n] of a column of numbers without nulls."""
    return np.from_dlpack(column)
