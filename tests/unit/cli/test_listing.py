"""The commands list and status."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from pathlib import Path

import pytest

from orchestrator.cli.ui import render
from orchestrator.cli.ui.arguments import ENDED, STATES
from orchestrator.cli.ui.run_list import RunList
from orchestrator.cli.ui.terminal import Terminal
from orchestrator.cli.verbs import show
from orchestrator.runs.status import RunAttempt, RunState, RunStatus
from orchestrator.support.formatting import ago, count, money
from orchestrator.sweeps.design.sweep_record import SweepState
from tests.run_folders import PLAN, make_run, report
from tests.unit.cli.conftest import Command
from tests.unit.sweeps.test_sweep_table import make

PRICED = {"compute": {**PLAN["compute"], "price_per_hour": 36.0}}


def status(name: str = "run-1", **changes: object) -> RunStatus:
    fields = {"name": name, "handle": f"local://{name}", "state": "running", "created": 0.0, "run_hash": "01234567"}
    return RunStatus.model_validate({**fields, **changes})


def test_list_newest_first_with_filters(home: Path, orchestrator: Command) -> None:
    now = time.time()
    make_run(home, "older", RunState.FAILED, age=10, created=now - 7300, started=now - 7300, ended=now - 7175)
    report(make_run(home, "newer", created=now - 90, started=now - 80, ended=now - 75), 100, loss=1.0)
    lines = orchestrator("list").out.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "KIND", "STEP", "TIME", "SUBMITTED"]
    assert lines[1].split() == ["newer", "completed", "pretrain", "100/100", "5", "s", "1", "min", "ago"]
    assert lines[2].split() == ["older", "failed", "pretrain", "0/100", "2", "min", "05", "s", "2", "h", "ago"]


def test_list_with_price_has_cost_column(home: Path, orchestrator: Command) -> None:
    attempt = {"started": 0.0, "ended": 125.0}
    make_run(home, "priced", plan=PRICED, attempts=[attempt], started=0.0, ended=125.0)
    make_run(home, "unpriced", age=5, attempts=[attempt], started=0.0, ended=125.0)
    header, priced, unpriced = orchestrator("list").out.splitlines()
    assert header.split() == ["RUN", "STATE", "KIND", "STEP", "TIME", "COST", "SUBMITTED"]
    assert "$1.25" in priced
    assert "$" not in unpriced
    found = orchestrator("list", "-o", "json").json
    assert [run["cost"] for run in found] == [1.25, None]


def test_list_shows_kind_and_score(home: Path, orchestrator: Command) -> None:
    tuned = make_run(home, "tuned", plan={"spec": {"kind": "finetune", "tags": {}}})
    (tuned.outputs / "result.json").write_text(json.dumps({"task": "MRPC", "metrics": {"loss": 1.0, "f1": 0.875}}))
    report(make_run(home, "plain", age=5), 100, validation_mlm_loss=5.25)
    header, first, second = (line.split() for line in orchestrator("list").out.splitlines())
    assert header[:5] == ["RUN", "STATE", "KIND", "STEP", "SCORE"]
    assert first[:3] == ["tuned", "completed", "finetune"]
    assert "f1 0.8750" in " ".join(first)
    assert "MLM loss 5.2500" in " ".join(second)


def test_list_folds_trials_and_names_early_stops(home: Path, orchestrator: Command) -> None:
    """A sweep is one line; --trials shows its runs, and one that the policy stopped is not called cancelled."""
    found = make(home, name="search-1")
    for number, state in enumerate([RunState.COMPLETED, RunState.CANCELLED, RunState.CANCELLED]):
        tags = {"orchestrator.sweep": "search-1", "orchestrator.trial": str(number)}
        make_run(home, f"search-1-t000{number}", state, age=10 - number, plan={"spec": {"tags": tags}})
    make_run(home, "alone", age=20)
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    (found.folder.path / "decisions.jsonl").write_text(
        json.dumps({"trial": 1, "report": 2, "stop": True, "why": "below the median"}) + "\n"
    )
    metrics = {"step": 1, "time": 0.0, "metrics": {"trial": 2.5, "best": 2.25}}
    (found.folder.path / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    _, sweep, alone = orchestrator("list").out.splitlines()
    assert sweep.startswith("search-1  ")
    assert "completed  sweep of pretrain  1/4 trials  loss 2.2500" in sweep
    assert alone.startswith("alone")
    assert len(orchestrator("list", "--limit", "1").out.splitlines()) == 2
    for words in (("--trials",), ("--all",)):
        lines = orchestrator("list", *words).out.splitlines()[1:]
        states = {line.split()[0]: line for line in lines}
        assert [*states] == ["search-1-t0002", "search-1-t0001", "search-1-t0000", "alone"]
        assert "  stopped early  " in states["search-1-t0001"]
        assert "  cancelled  " in states["search-1-t0002"], "a user cancelled it"
    assert len(orchestrator("list", "--state", "cancelled").out.splitlines()) == 3
    assert len(orchestrator("list", "-o", "json").json) == 4


def test_list_filters_by_state_and_limit(home: Path, orchestrator: Command) -> None:
    for age, state in enumerate(["completed", "failed", "cancelled", "failed"]):
        make_run(home, f"{state}-{age}", RunState(state), age=age)

    def names(*words: str) -> list[str]:
        return [run["name"] for run in orchestrator("list", "-o", "json", *words).json]

    assert names("--state", "failed") == ["failed-1", "failed-3"]
    assert names("--status", "failed", "--state", "completed", "--limit", "2") == ["completed-0", "failed-1"]
    none = orchestrator("list", "--state", "running")
    assert (none.code, none.out) == (0, "")
    assert "no run is running" in none.err


def test_list_of_many_runs_shows_the_newest(home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of rows would push the newest off the screen; a script gets all."""
    monkeypatch.setattr(show, "DEFAULT_LIMIT", 2)
    for age in range(3):
        make_run(home, f"run-{age}", age=age)
    found = orchestrator("list")
    assert [line.split()[0] for line in found.out.splitlines()] == ["RUN", "run-0", "run-1"]
    assert "the newest 2; for older ones add --limit N" in found.err
    all_rows = orchestrator("list", "--limit", "3")
    assert len(all_rows.out.splitlines()) == 4
    assert all_rows.err == ""
    assert len(orchestrator("list", "-o", "json").json) == 3
    monkeypatch.setattr(show, "DEFAULT_LIMIT", 3)
    assert orchestrator("list").err == "", "nothing is left out"


@pytest.mark.parametrize("words", [(), ("-o", "json"), ("--mlflow", "store.db", "-o", "json")])
def test_list_limit_may_be_any_number(
    home: Path, orchestrator: Command, empty_store: Path, words: tuple[str, ...]
) -> None:
    make_run(home, "one")
    shutil.copy(empty_store, "store.db")
    found = orchestrator("list", *words, "--limit", str(10**23))
    assert found.code == 0, found.err
    assert "one" in found.out


@pytest.mark.parametrize("words", [("--state", "faled"), ("--limit", "0"), ("--limit", "-1"), ("--limit", "x")])
def test_list_contradictory_filters_are_usage_errors(words: tuple[str, str], orchestrator: Command) -> None:
    refused = orchestrator("list", *words)
    assert refused.code == 2
    assert refused.err.startswith("error[usage]: ")
    assert words[1] in refused.err


def test_list_without_runs_succeeds(orchestrator: Command) -> None:
    done = orchestrator("list")
    assert (done.code, done.out) == (0, "")
    assert "orchestrator submit pretrain" in done.err
    assert orchestrator("list", "-o", "json").json == []


def test_list_accepts_every_state() -> None:
    assert tuple(RunState) == STATES
    assert tuple(state for state in RunState if state.terminal) == ENDED


def test_long_table_fits_and_keeps_distinguishing_parts() -> None:
    names = [f"pretrain-{'x' * 40}-{number:08x}" for number in range(2)]
    started = time.time() - 35_990_000
    wide = {"state": "completed", "step": 1_000_000, "steps": 1_000_000, "started": started, "cost": 999.99}
    runs = [status(name, created=started, **wide) for name in names]
    assert all(name in RunList(lambda _: None).text(runs) for name in names), "output to a pipe is not truncated"
    lines = RunList(lambda _: None).text(runs, None, Terminal(80)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("pretrain-")
    assert "00000000  completed" in lines[1]
    assert "00000001  completed" in lines[2]
    assert "1M/1M" in lines[1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7200, "2 h ago"), (86400 * 12, "12 d ago")],
)
def test_age_is_relative_time(seconds: float, text: str) -> None:
    assert ago(time.time() - seconds) == text


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0, "$0.00"), (0.004, "<$0.01"), (0.005, "$0.01"), (1.239, "$1.24"), (999.99, "$999.99"), (1234.56, "$1,235")],
)
def test_money_has_cents_for_small_amounts(usd: float, text: str) -> None:
    assert money(usd) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (99_999, "99999"), (100_000, "100k"), (123_456, "123.5k"), (1_000_000, "1M")]
)
def test_count_shortens_large_numbers(number: int, text: str) -> None:
    assert count(number) == text


def test_status_lists_every_attempt() -> None:
    reason = "rank 0 was killed by signal SIGKILL; see /home/someone/.orchestrator/runs/run-1/logs/rank-0.log"
    attempts = [
        RunAttempt(started=0, ended=125, state=RunState.PREEMPTED, step=40, reason="stopped by SIGTERM"),
        RunAttempt(started=130, ended=140, state=RunState.FAILED, reason=reason),
        RunAttempt(started=time.time() - 5),
    ]
    assert reason in render.status_text(status(attempt=3, attempts=attempts))
    text = render.status_text(status(attempt=3, attempts=attempts), Terminal(80))
    assert "  attempt    3\n" in text
    assert "             1: preempted, 2 min 05 s, step 40: stopped by SIGTERM\n" in text
    assert "             2: failed, 10 s: rank 0 was killed by signal SIGKILL" in text
    assert "             3: running, 5 s" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "attempt" not in render.status_text(status(attempts=attempts[:1]))


def test_status_shows_cost_and_expected_end(home: Path, orchestrator: Command) -> None:
    run = make_run(home, "one", RunState.RUNNING, plan=PRICED, attempts=[{"started": time.time() - 100}])
    report(run, 50, at=time.time(), sequences_per_second=0.1)
    with (run.path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        text = orchestrator("status", "one").out
    assert "  eta        1 h 06 min, at " in text  # 50 steps of 8 sequences are left: 4000 s
    assert "  cost       $1.0" in text
    assert "  step       50 of 100" in text
