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
    rest = {"param_groups": list(state_dict["param_groups"]), "values": values}
    if lost := [name for name, value in values.items() if not _survives(value)]:
        raise TrainingError(
            "cannot save the state of the optimizer: a checkpoint holds tensors, numbers, None and lists of them",
            facts={"need": "tensors, numbers, None, lists of them", "have": f"{values[lost[0]]!r} as {lost[0]}"},
            fix="keep it in another form (docs/own-classes.md)",
        )
    return tensors, rest


def unflatten(tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that `flatten` split, for `load_state_dict`; a tuple among the options has become a list."""
    numbers = {name: number for number, name in _names(rest["param_groups"]).items()}
    state: dict[int, dict[str, Any]] = {}
    for full_name, value in {**tensors, **rest["values"]}.items():
        name, _, key = full_name.rpartition(".")
        state.setdefault(numbers[name], {})[key] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def carried_over(earlier: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `state_dict()` of an optimizer with the state of an earlier one for parameters of the same name.

    Options are `own`'s. Step counters begin at zero; a parameter that the earlier one did not train has no state yet.

    Args:
        earlier: the other `state_dict()`, of the same kind of optimizer.
        own: of an optimizer that has made no step.
    """
    numbers = {name: number for number, name in _names(own["param_groups"]).items()}
    names = _names(earlier["param_groups"])
    state = {
        numbers[names[number]]: {key: _restarted(value) if key == STEP else value for key, value in entries.items()}
        for number, entries in earlier["state"].items()
        if names[number] in numbers
    }
    return {"state": state, "param_groups": own["param_groups"]}


def _survives(value: Any) -> bool:
    """Return whether JSON and `load_state_dict` preserve a value: the latter corrupts strings."""
    if isinstance(value, list):
        return all(map(_survives, value))
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
    """Write tensors of any device as a safetensors file; one at a time is copied to the host.

    Raises:
        OSError: the disk is full, read-only or gone; the part written so far stays.
    """
    ordered = dict(
        sorted(tensors.items(), key=lambda item: -item[1].element_size())
    )  # largest elements first, so that none is misaligned
    return write_file(path, _pieces(ordered), chunk=chunk)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the number of bytes in the elements of `tensors`."""
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
