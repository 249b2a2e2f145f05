"""Files written and hashed in one pass, and read back, in small steps: tensors in the safetensors format, and text.

    8 bytes  length of the header, little-endian
    header   JSON: NAME -> {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, padded with spaces
    bytes    one tensor after the other, row-major, little-endian

(https://github.com/huggingface/safetensors#format; its own loader reads these files.) What writes them holds the
interpreter's lock for a few calls a megabyte, so a thread may do it beside training. The library's writer would have
to read each file again for its hash, and can't be interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from train_jobs.artifacts.commit import CHUNK, WrittenFile, write_file

ALIGNMENT = 8
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], *, chunk: int = CHUNK
) -> Generator[None, None, WrittenFile]:
    """Writes `tensors`, on whatever device, as a safetensors file; one at a time is on the host for it.

    Raises:
        OSError: the disk is full, read-only or gone; what was written so far stays.
    """
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # so that none is misaligned
    return write_file(path, _pieces(ordered), chunk=chunk)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements of `tensors`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    yield _header(tensors)
    for tensor in tensors.values():
        host = tensor.detach().to("cpu").contiguous()
        yield host.reshape(-1).view(torch.uint8).numpy().data


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + bytes_of([tensor])
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
