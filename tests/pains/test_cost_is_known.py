"""Pain 18: the cost of runs is unknown, wrong or hard to find."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestrator.runs.status import RunState
from tests.conftest import Console
from tests.run_folders import live_run, make_run, report

pytestmark = pytest.mark.usefixtures("untracked")

HOUR = 3600.0


def planned(console: Console, *words: str) -> dict[str, Any]:
    plan: dict[str, Any] = console("plan", "pretrain", *words, "-o", "json").json["plan"]
    return plan


def test_price_is_shown_before_and_after_run(console: Console) -> None:
    (console.cwd / "orchestrator.yaml").write_text(
        "compute:\n  nodes: 2\n  price_per_hour: 98.32\ntrain:\n  micro_batch_size: 32\n"
    )
    text = console("plan", "pretrain").out
    assert "  price       2 x $98.32 = $196.64 an hour (compute.price_per_hour)" in text
    attempts = [
        {"started": 0.0, "ended": 1.5 * HOUR, "state": "preempted", "step": 600},
        {"started": 2 * HOUR, "ended": 2.5 * HOUR, "state": "completed", "step": 1000},
    ]
    run = make_run(console.home, "one", plan=planned(console), nodes=2, attempts=attempts, started=0.0, ended=9.0)
    report(run, 500, at=1.25 * HOUR)
    report(run, 1000, at=2.4 * HOUR)
    assert "$393.28" in console("list").out
    assert "  cost       $393.28 for 4 node hours\n" in console("status", "one").out
    lines = console("cost", "one").out.splitlines()
    assert "  price          $98.32 per node and hour (orchestrator.yaml:3)" in lines
    assert "  cost           $393.28" in lines
    assert "  repeated       100 steps done again after a restart, 30 min 00 s, $49.16" in lines


def test_cost_of_running_run_covers_elapsed_time(console: Console) -> None:
    plan = planned(console, "--set", "compute.price_per_hour=36")
    with live_run(console.home, "one", plan=plan, attempts=[{"started": time.time() - HOUR}]):
        first = console("status", "one", "-o", "json").json["cost"]
        second = console("cost", "one", "-o", "json").json["runs"][0]["cost"]
    assert 36 <= first < second < 37


def test_cost_without_price_is_not_invented(console: Console) -> None:
    plan = planned(console)
    assert plan["compute"]["price_per_hour"] is None
    make_run(console.home, "one", RunState.FAILED, plan=plan, attempts=[{"started": 0.0, "ended": HOUR}])
    assert "$" not in console("list").out + console("status", "one").out
    printed = console("cost", "one").out
    assert "  node hours     1 h: 1 attempt on 1 node" in printed
    assert "no price (set it at submission: --set compute.price_per_hour=USD)" in printed


def test_price_does_not_change_run_name(console: Console) -> None:
    assert planned(console)["name"] == planned(console, "--set", "compute.price_per_hour=1")["name"]
