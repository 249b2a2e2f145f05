"""The GPU day: budgets, resuming, a table of results; its estimates are those of the documentation."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import gpu_day, gpu_estimates, machine
from benchmarks.gpu_day import Result
from benchmarks.gpu_estimates import (
    CARDS,
    Workload,
    largest_micro_batch,
    lines,
    rate,
    tokens_that_hide_launches,
)
from benchmarks.gpu_measurement import GPU, REHEARSAL, Day, NotApplicable, RowFailed
from benchmarks.gpu_rows import ROWS, table_rows
from benchmarks.throughput_peers import pretraining_loop
from benchmarks.throughput_setup import prepare
from train_jobs.engine.loop.batch_process import BatchProcess
from train_jobs.engine.loop.staging import StagesBatches
from train_jobs.engine.loop.task import Prefetcher
from train_jobs.engine.runtime.distributed import single_process_world
from train_jobs.tasks import pretraining

ROOT = Path(__file__).resolve().parents[2]


def test_budgets_sum_to_25_minutes() -> None:
    assert sum(row.budget for row in ROWS.values()) == 25 * 60


def test_rehearsal_ends_in_25_minutes() -> None:
    assert sum(row.rehearsal for row in ROWS.values()) <= 25 * 60


def passed(name: str, **estimates: tuple[float, float]) -> Result:
    return Result(name, "passed", 3.0, {"figure": 1}, dict(estimates), "its output")


def test_day_resumes_after_rows_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    answers = {"LAMB": [Result("LAMB", "late", 40.0, {}, {}, "no result within 40 s"), passed("LAMB", ms=(2.0, 3.0))]}

    def measure(row: str, folder: Path, *, rehearse: bool) -> Result:
        assert rehearse
        started.append(row)
        return answers[row].pop(0) if row in answers else passed(row)

    monkeypatch.setattr(gpu_day, "measure", measure)
    words = ["--rehearse", "--folder", str(tmp_path)]
    assert gpu_day.main(words) == 1  # a row without a result fails the day
    assert started == list(ROWS)
    assert "late    LAMB (40 s): no result within 40 s" in capsys.readouterr().out
    assert gpu_day.main(words) == 0
    assert started == [*ROWS, "LAMB"]
    table = (tmp_path / "table.md").read_text()
    assert "no figure here was measured on a GPU" in table
    assert "| ms | 2 | 3 | 1.50 |" in table
    assert "## LAMB\n\n```\nits output" in table
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == len(ROWS) + 1


class GpuMachine:
    """A machine with GPUs as torch and nvidia-smi describe it, on which each row passes immediately."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus, self.started, self.code = 1, list[str](), "c0ffee1"
        self.driver = "580.95.05"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: self.gpus)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")
        monkeypatch.setattr(gpu_day.gpu_check, "driver_release", lambda: self.driver)
        monkeypatch.setattr(gpu_day, "commit", lambda: self.code)
        monkeypatch.setattr(gpu_day, "measure", self._measure)

    def _measure(self, row: str, folder: Path, *, rehearse: bool) -> Result:
        self.started.append(row)
        if row in ("scaling", "overlap") and self.gpus < 2 and not rehearse:
            return Result(row, "not applicable", 1.0, {}, {}, "it needs two GPUs")
        return passed(row)

    def run(self, *words: str) -> list[str]:
        """Run the day and return the rows that it started."""
        self.started.clear()
        assert gpu_day.main([*words]) == 0
        return list(self.started)


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    return GpuMachine(monkeypatch)


def test_day_reuses_results_of_equal_settings_only(tmp_path: Path, gpu_machine: GpuMachine) -> None:
    folder = ["--folder", str(tmp_path)]
    assert gpu_machine.run("--rehearse", *folder) == list(ROWS)
    assert gpu_machine.run(*folder) == list(ROWS)  # none of the rehearsal's counts
    assert gpu_machine.run(*folder) == []
    assert gpu_machine.run("--rehearse", *folder) == []
    for change in ({"driver": "590.1"}, {"code": "c0ffee2"}):
        vars(gpu_machine).update(change)
        assert gpu_machine.run(*folder) == list(ROWS)
    gpu_machine.gpus = 2
    assert gpu_machine.run(*folder) == ["machine", "scaling", "overlap"]
    last = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])["setting"]
    expected = {"mode": "day", "gpu": "NVIDIA H200", "gpus": 2, "driver": "590.1", "commit": "c0ffee2"}
    assert last == {**expected, "torch": torch.__version__}


def test_day_repeats_results_without_a_setting(tmp_path: Path, gpu_machine: GpuMachine) -> None:
    """Earlier versions did not record it."""
    lines = [{key: value for key, value in passed(row)._asdict().items() if key != "setting"} for row in ROWS]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert gpu_machine.run("--folder", str(tmp_path)) == list(ROWS)


def test_rehearsal_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_machine: GpuMachine
) -> None:
    monkeypatch.chdir(tmp_path)
    gpu_machine.run("--rehearse")
    assert [path.name for path in tmp_path.iterdir()] == ["gpu-rehearsal"]
    gpu_machine.run()
    assert (tmp_path / "gpu-day" / "table.md").is_file()


def test_day_shows_rows_that_do_not_apply(tmp_path: Path, gpu_machine: GpuMachine) -> None:
    gpu_machine.run("--folder", str(tmp_path))
    table = (tmp_path / "table.md").read_text()
    assert f"| overlap | not applicable | 1 of {ROWS['overlap'].budget} | it needs two GPUs |" in table
    assert "## overlap" not in table


def test_rehearsal_with_row_that_does_not_apply_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"overlap": Result("overlap", "not applicable", 1.0, {}, {}, "it needs two GPUs")}
    monkeypatch.setattr(gpu_day, "measure", lambda row, folder, rehearse: answer.get(row, passed(row)))
    assert gpu_day.main(["--rehearse", "--folder", str(tmp_path)]) == 1


@pytest.mark.parametrize("name", ["scaling", "overlap"])
def test_row_of_several_gpus_does_not_apply_to_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotApplicable, match="it needs two GPUs"):
        ROWS[name].measure(Day(tmp_path, torch.device("cuda", 0), GPU, 1))


def test_row_that_did_not_run_is_in_table() -> None:
    text = gpu_day.table({"LAMB": passed("LAMB")}, "head", rehearse=False)
    assert text.count("not run") == len(ROWS) - 1


@pytest.mark.parametrize(
    ("script", "state", "text"),
    [
        ('print(\'{"failed": "2 synchronisations"}\')', "failed", "2 synchronisations"),
        ("raise SystemError('the driver')", "failed", "the driver"),
        ("import time; time.sleep(60)", "late", "no result within"),
        ('print(\'{"figures": {}, "estimates": {}, "raw": ""}\')', "failed", "no figures"),
        ('print(\'{"not applicable": "it needs two GPUs"}\')', "not applicable", "two GPUs"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "ended with -9 and no output"),  # as for lack of memory
    ],
)
def test_row_that_fails_or_hangs_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, state: str, text: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_day.sys, "executable", str(program))
    monkeypatch.setitem(ROWS, "LAMB", ROWS["LAMB"]._replace(rehearsal=2))
    found = gpu_day.measure("LAMB", tmp_path, rehearse=True)
    assert found.state == state
    assert text in found.raw


@pytest.mark.long
def test_late_row_ends_programs_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contestant of a late row would otherwise compute on, and make every later row late too."""
    program, number = tmp_path / "python", tmp_path / "pid"
    script = (
        f"import subprocess, sys; p = subprocess.Popen(['sleep', '600']); open({str(number)!r}, 'w').write(str(p.pid))"
    )
    program.write_text(f"#!{sys.executable}\n{script}; p.wait()\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_day.sys, "executable", str(program))
    monkeypatch.setitem(ROWS, "LAMB", ROWS["LAMB"]._replace(rehearsal=5))
    assert gpu_day.measure("LAMB", tmp_path, rehearse=True).state == "late"
    started, until = int(number.read_text()), time.monotonic() + 30
    while is_running(started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(started)


def is_running(number: int) -> bool:
    """Return whether a process computes or sleeps; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_day_with_rows_left_out_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "measure", lambda row, folder, rehearse: passed(row))
    assert gpu_day.main(["--rehearse", "--folder", str(tmp_path), "--rows", "LAMB"]) == 1
    assert "incomplete: machine, synchronisations" in capsys.readouterr().out
    others = [name for name in ROWS if name != "LAMB"]
    assert gpu_day.main(["--rehearse", "--folder", str(tmp_path), "--rows", *others]) == 0


def test_rates_are_read_from_the_table() -> None:
    out = "| | sequences/s | b | c | d | e | f |\n|---|---|---|---|---|---|---|\n"
    out += "| ours | 1,010.03 (8.24-11.06) | 1 | 0.59 | 3.8 | 1.00 | 9.9 |\n"
    out += "| Trainer | 4.27 (4-5) | 4 | 0.25 | 4.9 | 2 | 9 |\n"
    assert dict(table_rows(out)) == {"ours": 1010.03, "Trainer": 4.27}


def test_documented_estimates_are_those_of_the_script() -> None:
    assert gpu_estimates.roofline_table() in (ROOT / "docs" / "speed.md").read_text()
    assert gpu_estimates.sizing_table() in (ROOT / "docs" / "gpu.md").read_text()


def test_lines_of_roofline_computed_by_hand() -> None:
    """BERT-large at 128 on an H100: 336.2 M parameters, 240.6 GFLOP a sequence, 4.8 of them attention."""
    found = lines(CARDS["H100 80 GB"], Workload("large", 128, 1024), 256)
    tokens = 1024 * 128
    assert found.products == pytest.approx(1024 * (240.6e9 - 4.83e9) / 735e12, rel=0.01)
    assert found.attention == pytest.approx(1024 * 4.83e9 / (0.082 * 735e12), rel=0.01)
    assert found.elementwise == pytest.approx(tokens * 240 * 24 * 1024 / 2.8e12)
    assert found.accumulation == pytest.approx(4 * 12 * 336.2e6 / 2.8e12, rel=0.01)
    assert found.optimizer == pytest.approx(77 * 336.2e6 / 2.8e12, rel=0.01)
    assert found.launches == 0


def test_padding_is_not_computed() -> None:
    card = CARDS["H100 80 GB"]
    full, half = (lines(card, Workload("large", 128, 1024, mean), 256) for mean in (None, 64.0))
    assert half.elementwise == full.elementwise / 2
    assert half.attention == pytest.approx(full.attention / 4)
    assert half.optimizer == full.optimizer
    assert lines(card, Workload("large", 128, 1024, None, "adamw"), 256).optimizer < 0.5 * full.optimizer


def test_small_micro_batches_wait_for_launches() -> None:
    card, work = CARDS["H100 80 GB"], Workload("base", 128, 1024)
    assert lines(card, work, 4).launches > 0
    assert rate(card, work, 4) < 0.5 * rate(card, work, 256)


def test_largest_micro_batch_grows_with_memory() -> None:
    work = Workload("large", 512, 1024)
    sizes = [largest_micro_batch(CARDS[name], work) or 0 for name in ("T4 16 GB", "A100 40 GB", "H200 141 GB")]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@pytest.mark.long
def test_row_of_loader_needs_batches_made_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = Day(tmp_path / "row", torch.device("cpu"), REHEARSAL, 0)
    figures = ROWS["input pipeline"].measure(day).figures
    assert figures["thread / resident"] > 0
    assert figures["process / resident"] > 0
    with monkeypatch.context() as without:
        without.setattr(BatchProcess, "make", lambda *given: None)
        with pytest.raises(RowFailed, match="this process read batches"):
            ROWS["input pipeline"].measure(day)
    monkeypatch.setattr(Prefetcher, "__call__", lambda ahead, cursor: ahead._make(cursor))
    with pytest.raises(RowFailed, match="read its batches itself"):
        ROWS["input pipeline"].measure(day)


@pytest.mark.long
def test_throughput_is_that_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our contestant has the loop of a pretraining: compiled and with staged batches wherever that has them."""
    options = {"recipe": "tiny", "length": 32, "micro_batch": 2, "accumulation": 2, "dropout": 0.1, "data": []}
    options |= {"vocabulary": None, "optimizer": "adamw", "device": "cpu", "warmup": 1, "backend": "inductor"}
    prepare(Namespace(**options), tmp_path)
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(pretraining, "is_compiled", lambda wanted, device: wanted == "auto")
    monkeypatch.setattr(pretraining, "compile_model", lambda model, **options: compiled.append(model))
    loop = pretraining_loop(tmp_path, tmp_path / "run", single_process_world(), precision="fp32")
    assert compiled == [loop.task.model]
    assert isinstance(loop.task, pretraining.BertPretraining)
    assert isinstance(loop.task, StagesBatches)
    batch, following = loop.task.train_batch({})
    expected = load_file(tmp_path / "batches.safetensors")["input_ids"]
    assert torch.equal(torch.from_numpy(batch.input_ids), expected[:4])
    assert following == {"start": 4}
    loop.policy = replace(loop.policy, prefetch=True)
    with loop.prefetching():
        assert loop._step()
        assert isinstance(loop._next_share, Prefetcher)


@pytest.mark.slow  # every row on the CPU: 10 minutes on two free cores
@pytest.mark.timeout(7200)
def test_rehearsal_passes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs it: pip install accelerate")
    for name, row in ROWS.items():
        monkeypatch.setitem(ROWS, name, row._replace(rehearsal=4 * row.rehearsal))  # this machine may be busy
    assert gpu_day.main(["--rehearse", "--folder", str(tmp_path)]) == 0
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [one["row"] for one in results] == list(ROWS)
    assert {one["state"] for one in results} == {"passed"}
    assert all(one["figures"] for one in results)
    assert os.path.getsize(tmp_path / "table.md") > 0  # noqa: PTH202


def test_documented_launches_are_those_of_the_script() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    cards = ("T4 16 GB", "A100 80 GB", "H100 80 GB", "H200 141 GB")
    for model in ("base", "large"):
        cells = (f"{tokens_that_hide_launches(CARDS[name], model):,.0f}" for name in cards)
        assert f"| BERT-{model} | {' | '.join(cells)} |" in text


def test_missing_package_is_named_with_its_installation() -> None:
    with pytest.raises(SystemExit, match=r"needs no-such-package: pip install -e '\.\[benchmarks\]'"):
        machine.machine("torch", "no-such-package")
