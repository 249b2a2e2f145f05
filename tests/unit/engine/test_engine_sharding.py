"""Optimizer state sharded over real gloo processes, and the assignment of tensors to processes."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch
from engine_scenes import OPTIMIZERS
from engine_toy import ToyTask, make_loop, run, weights_of
from safetensors.torch import load_file

from train_jobs.engine.loop.gradients import FlatGradients
from train_jobs.engine.loop.sharding import ShardedOptimizer, assign_owners
from train_jobs.engine.runtime.distributed import World


def last_of(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sharded_weights_bit_exact_on_every_process(scenes: Path, name: str) -> None:
    expected = load_file(scenes / f"{name}-whole-0.safetensors")
    for rank in range(2):
        found = load_file(scenes / f"{name}-sharded-{rank}.safetensors")
        assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert not torch.equal(expected["0.weight"], ToyTask().model[0].weight), "it trained"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sharded_checkpoint_equals_unsharded_bytes(scenes: Path, name: str) -> None:
    sharded, whole = (last_of(scenes / f"{name}-{kind}") for kind in ("sharded", "whole"))
    for file in ("optimizer.safetensors", "model.safetensors"):
        assert (sharded / file).read_bytes() == (whole / file).read_bytes()
    first, second = (json.loads((folder / "state.json").read_text()) for folder in (sharded, whole))
    for state in (first, second):
        del state["meter"]["seconds"]
    assert first == second


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_process_keeps_state_of_own_tensors_only(scenes: Path, name: str) -> None:
    """The tensors have 40, 32, 8 and 4 elements."""
    assert [json.loads((scenes / f"{name}-kept-{rank}.json").read_text()) for rank in range(2)] == [44, 40]


@pytest.mark.parametrize("step", [2, 4])
def test_state_loads_at_any_world_size_sharded_or_not(scenes: Path, step: int) -> None:
    """Two sharded processes, then a single one, then three sharded: each loads the state that the previous saved."""
    folder = scenes / "moved"
    saved = load_file(folder / "checkpoints" / f"step-{step:08d}" / "optimizer.safetensors")
    loaded = load_file(folder / f"loaded-{step}.safetensors")
    assert saved.keys() == loaded.keys()
    assert [key for key in saved if not torch.equal(saved[key], loaded[key])] == []


def test_changed_world_size_matches_uninterrupted_run(scenes: Path, tmp_path: Path) -> None:
    alone = make_loop(ToyTask(rows=7), tmp_path)
    run(alone)
    found = load_file(last_of(scenes / "moved") / "model.safetensors")
    torch.testing.assert_close(found, weights_of(alone), rtol=1e-5, atol=1e-6)


def test_loaded_state_of_another_process_is_not_kept(scenes: Path) -> None:
    """It would become stale: in the last checkpoint, two steps after the load, the counter of every tensor is six."""
    state = load_file(last_of(scenes / "moved") / "optimizer.safetensors")
    assert [state[key].item() for key in state if key.endswith(".step")] == [6.0] * 4


def test_single_process_is_not_sharded(tmp_path: Path) -> None:
    assert not isinstance(make_loop(ToyTask(), tmp_path, sharded=True).optimizer, ShardedOptimizer)


@pytest.mark.parametrize(
    ("sizes", "shares", "owners"),
    [
        ([40, 8, 32, 4], 2, [0, 1, 1, 0]),
        ([40, 8, 32, 4], 3, [0, 2, 1, 2]),
        ([5, 5, 5, 5], 2, [0, 1, 0, 1]),
        ([1, 2], 3, [1, 0]),
        ([3, 1], 1, [0, 0]),
    ],
)
def test_largest_tensor_is_assigned_to_smallest_share(sizes: list[int], shares: int, owners: list[int]) -> None:
    assert assign_owners(sizes, shares) == owners


def test_shards_of_bert_are_nearly_even() -> None:
    """BERT-base over 8 processes: the embedding table exceeds an even share, the rest is spread evenly."""
    layer = [768 * 768] * 4 + [768 * 3072] * 2 + [768] * 9 + [3072]
    sizes = [30528 * 768, 512 * 768, 2 * 768, *layer * 12, 768 * 768, 768 * 768]
    load = [0] * 8
    for size, owner in zip(sizes, assign_owners(sizes, 8), strict=True):
        load[owner] += size
    assert max(load) == 30528 * 768
    assert max(load[1:]) < 1.05 * sum(load[1:]) / 7


class OneOfTwo(World):
    """The second of two processes, whose peer has the same state; counts the tensors that it receives and keeps."""

    def gather_texts(self, text: str) -> list[str]:
        return [text, text]

    def broadcast_(self, tensor: torch.Tensor, rank: int) -> None:
        if rank != self.rank:
            given.append(weakref.ref(tensor))
            kept.append(sum(one() is not None for one in given))


given: list[weakref.ref[torch.Tensor]] = []
kept: list[int] = []


def test_process_keeps_nothing_sent_to_main_process() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    world = OneOfTwo(rank=1, local_rank=1, size=2, device=torch.device("cpu"))
    sharded = ShardedOptimizer(optimizer, FlatGradients(list(model.parameters())), world)
    optimizer.step()
    assert sharded.state_dict() == optimizer.state_dict()
    assert len(kept) >= 8
    assert max(kept) <= 2  # the current tensor, and the previous one until its name is reassigned
