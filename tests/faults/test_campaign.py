"""The campaign itself: one trial, and the page of its results."""

from __future__ import annotations

import pytest

from tests.faults.campaign.__main__ import wanted
from tests.faults.campaign.faults import FAULTS
from tests.faults.campaign.page import page
from tests.faults.campaign.trial import Outcome, run_trial, undisturbed

STAMP = {"commit": "0123abc", "date": "2026-11-23"}


def outcome(**more: object) -> Outcome:
    held = {"same_bytes": True, "metrics_once": True, "mlflow_runs": True, "reason_true": True, "reason": ""}
    lists: dict[str, list[str]] = {"processes_left": [], "files_left": [], "commands": []}
    facts = {"fault": "kill-rank", "kind": "pretrain", "seed": 0, "moment": 0.5, "noticed": 1.5}
    return Outcome.model_validate({**STAMP, **held, **lists, **facts, **more})


@pytest.mark.slow
def test_killed_preparation_passes_a_trial() -> None:
    reference = undisturbed("prepare")
    found = next(
        one
        for seed in range(20)
        if (one := run_trial("kill-supervisor", "prepare", seed, reference, STAMP)) is not None
    )
    assert found.passed, found


def test_page_shows_failing_trials() -> None:
    text = page([outcome(), outcome(seed=1, same_bytes=False, noticed=3.0)])
    (row,) = [line for line in text.splitlines() if 'id="kill-rank-pretrain"' in line]
    assert row.endswith("| pretrain | 2 | **1** | 2 | 2 | 2 | 2 | 2.2 (at most 3.0) |")
    assert "- kill-rank, pretrain, seed 1 (at 50%): bytes differ" in text
    assert "Failing trials" not in page([outcome()])


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_is_wanted_until_it_was_tried_often_enough(fault: str) -> None:
    kinds = list(FAULTS[fault].kinds)
    assert {kind for _, kind in wanted([], [fault], kinds)} == set(kinds)
    tried = [outcome(fault=fault, kind=kind, seed=seed) for kind in kinds for seed in range(100)]
    assert wanted(tried, [fault], kinds) == []
