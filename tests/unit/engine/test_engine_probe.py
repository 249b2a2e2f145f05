"""Probing for the largest micro batch that fits, without side effects on the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_toy import ALONE, ROW_BYTES, MemoryHungryTask, ToyTask, make_loop, reports_in, run, weights_of

from train_jobs.artifacts.host import host_memory
from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.config import OutOfMemoryError, PretrainConfig, SpecError, TrainConfig
from train_jobs.engine.loop.probe import HOST_SHARE, PeakMemory, largest_micro_batch

SIZES = [16, 8, 4, 2, 1]


def probed(task: ToyTask, rows: float, *, later_rows: int = 0, sizes: list[int] = SIZES) -> int:
    """Return the probed size with memory for `rows` rows; a fifth more is available and reserved for others."""
    return largest_micro_batch(
        task,
        sizes,
        world=ALONE,
        precision="fp32",
        later_bytes=later_rows * ROW_BYTES,
        available=lambda: int(rows * ROW_BYTES / HOST_SHARE),
    )


@pytest.mark.long
@pytest.mark.parametrize(("rows", "expected"), [(1000, 16), (18, 16), (13, 8), (9, 8), (6, 4), (3, 2), (1.5, 1)])
def test_probe_returns_largest_size_that_fits(rows: float, expected: int) -> None:
    assert probed(MemoryHungryTask(), rows) == expected


def test_probe_reserves_later_memory() -> None:
    assert probed(MemoryHungryTask(), 13, later_rows=8) == 4


@pytest.mark.parametrize(("steps", "asynchronous", "of_weights"), [(0, True, 5), (0, False, 2), (2, True, 3)])
def test_later_memory_is_moments_and_checkpoint_copy(
    tmp_path: Path, steps: int, asynchronous: bool, of_weights: int
) -> None:
    loop = make_loop(ToyTask(), tmp_path, steps=2, checkpoint={"asynchronous": asynchronous})
    loop.state.step = steps
    assert loop._later_bytes() == of_weights * 84 * 4


def test_moments_of_earlier_phase_are_not_reserved_again(tmp_path: Path) -> None:
    earlier = make_loop(ToyTask(), tmp_path / "earlier", steps=2)
    run(earlier)
    checkpoint = earlier.services.checkpoints.newest()
    assert checkpoint is not None
    loop = make_loop(ToyTask(), tmp_path / "later", checkpoint={"asynchronous": False})
    loop.begin_phase(checkpoint)
    assert (loop.state.step, loop._later_bytes()) == (0, 0)


def test_probe_divides_memory_by_processes_of_node() -> None:
    one_of_two = replace(ALONE, local_size=2)
    room = int(13 * ROW_BYTES / HOST_SHARE)
    probed = largest_micro_batch(
        MemoryHungryTask(), SIZES, world=one_of_two, precision="fp32", later_bytes=0, available=lambda: room
    )
    assert probed == 4


def test_probe_tries_no_size_that_might_not_fit() -> None:
    task = MemoryHungryTask()
    assert probed(task, 11) == 8
    assert task.sizes[0] == 1
    assert max(task.sizes) <= 8
    assert len(task.sizes) <= 2


def test_probe_with_ample_memory_needs_one_attempt() -> None:
    task = MemoryHungryTask()
    assert probed(task, 10_000) == 16
    assert task.sizes == [1]


def test_probe_counts_fixed_memory_once() -> None:
    """A fixed cost of 5 rows, like gradients and 16-bit weights: 16 rows need 21, not 16 times 6."""

    class Fixed(MemoryHungryTask):
        def loss(self, batch: object, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            fixed = torch.ones(5 * ROW_BYTES // 4)
            result = super().loss(batch, totals)  # type: ignore[arg-type]
            del fixed
            return result

    assert probed(Fixed(), 25) == 16
    assert probed(Fixed(), 17) == 8


AFTER_FREED_MEMORY = """
import numpy as np, torch
from engine_toy import ROW_BYTES, ToyTask
from test_engine_probe import probed
from train_jobs.engine.runtime.allocator import keep_freed_tensors

class Allocating(ToyTask):
    def loss(self, batch, totals):
        taken = torch.ones(len(batch) * ROW_BYTES // 4)
        return super().loss(batch, totals)

assert keep_freed_tensors()
freed = np.ones(2**30, np.uint8)
del freed
print(probed(Allocating(), 11))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the settings are specific to glibc")
def test_probe_does_not_take_kept_memory_for_free() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AFTER_FREED_MEMORY],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("8\n", 0), done.stderr


def test_probe_without_memory_for_one_sequence_raises() -> None:
    with pytest.raises(OutOfMemoryError, match="out of memory in step 1") as caught:
        probed(MemoryHungryTask(), 0.5)
    assert caught.value.facts["need"] == "more memory for a micro batch of 1"


def test_probe_result_fits_on_all_processes(scenes: Path) -> None:
    """Rank 1 has memory for 12 rows, less the reserved fifth; then for none."""
    first, second = (json.loads((scenes / f"found-{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["some"] == 8
    assert first["none"].startswith("error[memory]: out of memory in step 1")


def test_probe_repeats_when_world_size_changes(scenes: Path) -> None:
    """8 sequences are shared by 2, 3 and 1 processes."""
    folders = [scenes / "auto" / "checkpoints" / f"step-{step:08d}" for step in (2, 4, 6)]
    states = [json.loads((folder / "state.json").read_text()) for folder in folders]
    assert [state["world_size"] for state in states] == [2, 3, 1]
    assert [state["loop"]["micro_batch_size"] for state in states] == [4, 3, 8]


def test_resume_keeps_micro_batch_of_unlike_gpus(scenes: Path) -> None:
    """The two ranks have different models of GPU; a resume on the same ones searches on none of them."""
    still, mixed = (scenes / name / "checkpoints" / "step-00000006" for name in ("still", "mixed"))
    first, last = (
        json.loads((folder / "state.json").read_text()) for folder in (mixed.parent / "step-00000002", mixed)
    )
    assert first["device"] == last["device"] == "GPU of rank 0"
    assert first["loop"]["micro_batch_size"] == last["loop"]["micro_batch_size"] == 4
    assert last["loop"]["cursor"] == json.loads((still / "state.json").read_text())["loop"]["cursor"]


def test_probe_does_not_change_training(tmp_path: Path) -> None:
    """A run that probed its micro batch is bit-exact with one that sets the size explicitly."""
    given = make_loop(ToyTask(dropout=0.3), tmp_path / "given", micro_batch_size=3)
    run(given)
    auto = make_loop(ToyTask(dropout=0.3), tmp_path / "auto", micro_batch_size="auto")
    before, random = weights_of(auto), torch.get_rng_state()
    auto.task.model.eval()
    auto.find_micro_batch([3, 2, 1])
    assert auto.micro_batch_size == 3
    torch.testing.assert_close(weights_of(auto), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert not auto.gradients.flat.any()
    assert not auto.optimizer.state_dict()["state"]
    assert not auto.task.model.training
    run(auto)
    torch.testing.assert_close(weights_of(auto), weights_of(given), rtol=0, atol=0)
    assert reports_in(tmp_path / "auto") == reports_in(tmp_path / "given")


def test_explicit_micro_batch_is_not_probed(tmp_path: Path) -> None:
    task = MemoryHungryTask()
    loop = make_loop(task, tmp_path, micro_batch_size=2)
    loop.find_micro_batch([16, 8])
    assert loop.micro_batch_size == 2
    assert not hasattr(task, "sizes")


@pytest.mark.parametrize(
    ("global_batch_size", "world_size", "length", "on_cpu", "sizes"),
    [
        (1024, 4, 128, True, [32, 16, 8, 4, 2, 1]),  # 4096 tokens
        (1024, 4, 128, False, [256, 128, 64, 32, 16, 8, 4, 2, 1]),
        (96, 1, 32, True, [96, 48, 24, 12, 6, 3, 2, 1]),
        (65_536, 48, 128, False, [171, 86, 43, 22, 11, 6, 3, 2, 1]),  # shares of 1365 and 1366
        (8, 1, 8192, True, [1]),
        (1, 1, 128, True, [1]),
    ],
)
def test_probe_sizes_are_repeated_halves_of_share(
    global_batch_size: int, world_size: int, length: int, on_cpu: bool, sizes: list[int]
) -> None:
    config = PretrainConfig.model_validate(
        {
            "train": {"global_batch_size": global_batch_size, "micro_batch_size": "auto"},
            "data": {"sequence_length": length},
            "model": {"max_position_embeddings": 8192},
        }
    )
    assert config.micro_batches(world_size, on_cpu=on_cpu) == sizes


def test_auto_with_indivisible_batch_is_refused() -> None:
    train = TrainConfig(global_batch_size=1024, micro_batch_size="auto")
    assert train.accumulation_steps(8) is None
    with pytest.raises(SpecError, match="does not divide into processes") as caught:
        train.accumulation_steps(3)
    assert caught.value.facts == {"need": "a multiple of 3 = world_size 3", "nearest": "1023 or 1026"}
    assert TrainConfig(global_batch_size=1024, micro_batch_size=8).accumulation_steps(4) == 32


def test_auto_with_micro_batch_normalization_is_refused() -> None:
    layer = ConfigLayer("--set", {"train": {"micro_batch_size": "auto", "loss_normalization": "micro_batch"}})
    with pytest.raises(SpecError) as caught:
        build(PretrainConfig, merge([layer]))
    (problem,) = caught.value.problems
    assert "set a number, or loss_normalization=global" in problem


@pytest.mark.parametrize("wrong", [0, "many", True, 1.5])
def test_invalid_micro_batch_is_one_problem(wrong: object) -> None:
    with pytest.raises(SpecError) as caught:
        build(PretrainConfig, merge([ConfigLayer("--set", {"train": {"micro_batch_size": wrong}})]))
    (problem,) = caught.value.problems
    assert 'must be a whole number above 0, or "auto"' in problem


def test_peak_includes_freed_memory() -> None:
    task = MemoryHungryTask()
    with PeakMemory() as before:
        pass
    with PeakMemory() as peak:
        task.loss(task.largest_batch(8), torch.ones(2))
    assert 7.5 * ROW_BYTES < peak.bytes - before.bytes < 12 * ROW_BYTES


def test_container_memory_counts_reclaimable_files(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n")
    assert host_memory(meminfo, tmp_path) == (32_768_000_000, None, 65_536_000_000)
    (tmp_path / "memory.max").write_text("8000000000\n")
    (tmp_path / "memory.current").write_text("7000000000\n")
    assert host_memory(meminfo, tmp_path) == (1_000_000_000, 8_000_000_000, 8_000_000_000)
    (tmp_path / "memory.stat").write_text("anon 3000000000\ninactive_file 2500000000\nactive_file 1500000000\n")
    assert host_memory(meminfo, tmp_path).available == 3_500_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(meminfo, tmp_path) == (32_768_000_000, None, 65_536_000_000)
