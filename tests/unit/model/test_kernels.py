"""Processes of a job agree on precision and attention kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from train_jobs.config import SpecError
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert import attention, kernels
from train_jobs.models.bert.kernels import agree_on_kernels


class OneOfTwo(World):
    """A process with a GPU, whose peer answers every question with `others`."""

    others: list[int]

    def minimum(self, value: int) -> int:
        """Return the lower value of this process and of its peer."""
        return min(value, self.others.pop(0))


def world(others: list[int], device: str = "cuda:0") -> OneOfTwo:
    made = OneOfTwo(rank=0, local_rank=0, size=2, device=torch.device(device))
    object.__setattr__(made, "others", others)
    return made


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process have the kernel and a compiler."""
    monkeypatch.setattr(kernels, "packed_kernel_problem", lambda *_: None)
    monkeypatch.setattr(kernels, "missing_for_compiling", lambda _: None)
    yield
    attention._refused.clear()
    attention.packed_kernel_problem.cache_clear()


def test_kernel_of_all_processes_is_printed() -> None:
    lines = agree_on_kernels(world([0, 0, 1]), "bf16", 64, compile_wanted=True)
    assert lines == ["attention  FlashAttention on packed sequences"]


def test_peer_without_kernel_turns_it_off_with_warning() -> None:
    lines = agree_on_kernels(world([0, 0, 0]), "bf16", 64, compile_wanted=True)
    assert lines[0] == "attention  padded layout"
    assert lines[1].startswith("warning: attention is slower")
    assert "another process" in lines[1]
    assert not attention.has_packed_kernel(torch.device("cuda", 0), torch.bfloat16, 64)


def test_different_precisions_are_refused() -> None:
    with pytest.raises(SpecError, match="different arithmetic") as caught:
        agree_on_kernels(world([1, -1]), "bf16", 64, compile_wanted=True)
    assert "train.precision=fp16" in str(caught.value.fix)


def test_different_precisions_of_cpus_have_their_own_fix() -> None:
    with pytest.raises(SpecError, match="different arithmetic") as caught:
        agree_on_kernels(world([2, -2], "cpu"), "bf16", 64, compile_wanted=False, section="batching")
    assert "batching.precision=fp32" in str(caught.value.fix)


def test_missing_compiler_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "missing_for_compiling", lambda _: "a C compiler (gcc, clang)")
    lines = agree_on_kernels(world([0, 0, 1]), "bf16", 64, compile_wanted=True)
    assert (
        lines[-1] == "warning: layers are not compiled, which is slower: this machine lacks a C compiler (gcc, clang)"
    )
