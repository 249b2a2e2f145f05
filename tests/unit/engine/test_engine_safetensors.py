"""Our safetensors files follow the format exactly and load with the library's own loader."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from train_jobs.artifacts.commit import CHUNK, WrittenFile, finish, read_file, write_file
from train_jobs.engine.checkpoint.serialization import DTYPES, write_tensors

ALL_TYPES = {
    f"{index}-{code}": torch.tensor([[0, 1, 1]]).to(dtype) for index, (dtype, code) in enumerate(DTYPES.items())
}
AWKWARD = {
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 4),
    "transposed": torch.arange(6.0).view(2, 3).T,
    "every other": torch.arange(10)[::2],
    "trained": torch.nn.Parameter(torch.ones(3)),
    'snow \N{SNOWMAN} "quoted"': torch.tensor([float("nan"), float("-inf"), -0.0]),
    "odd": torch.tensor([True, False, True]),
}


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_reads_back(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert as_bytes(found[name]) == as_bytes(tensor), name


@pytest.mark.parametrize("tensors", [ALL_TYPES, AWKWARD, {}], ids=["types", "awkward", "none"])
@pytest.mark.parametrize("chunk", [CHUNK, 1, 7])
def test_safetensors_library_reads_our_files(tmp_path: Path, tensors: dict[str, torch.Tensor], chunk: int) -> None:
    finish(write_tensors(tmp_path / "file", tensors, chunk=chunk))
    assert_reads_back(tmp_path / "file", tensors)


def test_transformers_recognises_pytorch_format(tmp_path: Path) -> None:
    finish(write_tensors(tmp_path / "file", AWKWARD))
    with safe_open(tmp_path / "file", framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}


@pytest.mark.parametrize("tensors", [ALL_TYPES, AWKWARD], ids=["types", "awkward"])
def test_file_has_no_gaps_and_aligned_tensors(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    finish(write_tensors(tmp_path / "file", tensors))
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    spans = sorted((*header[name]["data_offsets"], tensor.element_size()) for name, tensor in tensors.items())
    assert [begin for begin, _, _ in spans] == [0, *(end for _, end, _ in spans[:-1])]
    assert spans[-1][1] == len(content) - 8 - length
    assert all(begin % size == 0 for begin, _, size in spans)


@pytest.mark.parametrize("chunk", [CHUNK, 7])
def test_reported_size_and_hash_match_file(tmp_path: Path, chunk: int) -> None:
    tensors, text = tmp_path / "tensors", tmp_path / "text"
    written = {
        tensors: finish(write_tensors(tensors, AWKWARD, chunk=chunk)),
        text: finish(write_file(text, [b"ab", b"", b"c"], chunk=chunk)),
    }
    for path, reported in written.items():
        content = path.read_bytes()
        assert reported == WrittenFile(len(content), hashlib.sha256(content).hexdigest())
        assert finish(read_file(path, chunk=chunk)) == reported
    assert text.read_bytes() == b"abc"
