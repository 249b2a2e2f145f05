"""Tensors and optimizer state as files without pickle: flattened to named tensors and plain values, and back.

Files are written and hashed in one pass, and read back, in small steps. The safetensors format
(https://github.com/huggingface/safetensors#format; its own loader reads these files):

    8 bytes  length of the header, little-endian
    header   JSON: NAME -> {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, padded with spaces
    bytes    one tensor after the other, row-major, little-endian

The writer holds the interpreter's lock for a few calls a megabyte, so a thread may run it during training. The
library's writer would have to read each file again for its hash, and cannot be interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from train_jobs.artifacts.commit import CHUNK, WrittenFile, write_file
from train_jobs.config import TrainingError

STEP = "step"  # what torch's optimizers call their counter of steps


def flatten(state_dict: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split the `state_dict()` of an optimizer into tensors and the rest.

    Returns:
        Tensors named PARAMETER.KEY (`bert.pooler.dense.weight.exp_avg`), where an optimizer that was given no names
        has the number of the parameter; and the rest, JSON-safe: `param_groups` as they are, and `values` that are
        not tensors, under the same names.

    Raises:
        TrainingError: the optimizer keeps a value that JSON cannot hold.
    """
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {}
    names = _names(state_dict["param_groups"])
    for number, entries in state_dict["state"].items():
        for key, value in entries.items():
            (tensors if isinstance(value, torch.Tensor) else values)[f"{names[number]}.{key}"] = value
    # Keyed by name, not by number: numbers change when parameters are frozen or reordered, and phase 2 maps moments by
    # name.
    rest = {"param_groups": list(state_dict["param_groups"]), "values": values}
    if lost := [name for name, value in values.items() if not _is_storable(value)]:
        raise TrainingError(
            "cannot save the state of the optimizer: unsupported value",
            facts={"need": "tensors, numbers, None, lists of them", "have": f"{values[lost[0]]!r} as {lost[0]}"},
            fix="store it as a tensor or a number (docs/own-classes.md)",
        )
    return tensors, rest


def unflatten(tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `state_dict()` that `flatten` split, for `load_state_dict`.

    Args:
        tensors: tensors named PARAMETER.KEY.
        rest: second result of `flatten`, or the same read from JSON, where tuples became lists.
    """
    numbers = {name: number for number, name in _names(rest["param_groups"]).items()}
    state: dict[int, dict[str, Any]] = {}
    for full_name, value in {**tensors, **rest["values"]}.items():
        # From the right: names of parameters contain dots, keys of optimizer state do not.
        name, _, key = full_name.rpartition(".")
        state.setdefault(numbers[name], {})[key] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def transfer_state(earlier: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's `state_dict()` with the moments of an earlier optimizer, matched by parameter name.

    Options are those of `own`. Step counters restart at zero, as between NVIDIA's phases (see `Loop.begin_phase`). A
    parameter that the earlier optimizer did not train has no state yet.

    Args:
        earlier: `state_dict()` of the earlier optimizer, of the same class.
        own: `state_dict()` of an optimizer that has made no step.
    """
    numbers = {name: number for number, name in _names(own["param_groups"]).items()}
    names = _names(earlier["param_groups"])
    state = {
        numbers[names[number]]: {key: _restarted(value) if key == STEP else value for key, value in entries.items()}
        for number, entries in earlier["state"].items()
        if names[number] in numbers
    }
    return {"state": state, "param_groups": own["param_groups"]}


def _is_storable(value: Any) -> bool:
    """Return whether JSON and `load_state_dict` preserve a value."""
    # No strings: torch's load_state_dict rebuilds every iterable from a generator, which turns a string into
    # "<generator object ...>". No tuples and no dicts: JSON returns them as lists, and with text keys.
    if isinstance(value, list):
        return all(map(_is_storable, value))
    return value is None or isinstance(value, bool | int | float)


def _restarted(step: Any) -> Any:
    return torch.zeros_like(step) if isinstance(step, torch.Tensor) else type(step)(0)


def _names(groups: list[dict[str, Any]]) -> dict[int, str]:
    """Return number -> name of each parameter."""
    return {
        number: name
        for group in groups
        for number, name in zip(group["params"], group.get("param_names", map(str, group["params"])), strict=True)
    }


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
    """Write tensors as a safetensors file, in small steps.

    Args:
        path: file to write.
        tensors: tensors on any device; one at a time is copied to the host.
        chunk: bytes to write between two steps.

    Returns:
        Size and SHA-256 of the file, as the result of the generator.

    Raises:
        OSError: the disk is full, read-only or no longer mounted; the partial file stays.
    """
    # Largest elements first: the format has no padding between tensors, and readers map the file, so in any other
    # order an 8-byte tensor could begin at an odd address. The header is padded to 8 bytes for the same reason.
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    return write_file(path, _file_parts(ordered), chunk=chunk)


def total_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the number of bytes in the elements of `tensors`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _file_parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    yield _header(tensors)
    # A view of the bytes, not tobytes(): no second copy of an embedding table in memory.
    for tensor in tensors.values():
        host = tensor.detach().to("cpu").contiguous()
        yield host.reshape(-1).view(torch.uint8).numpy().data


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + total_bytes([tensor])
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
