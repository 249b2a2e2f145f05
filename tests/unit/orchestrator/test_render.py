"""Output of results on a terminal of 80 columns, and elsewhere."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.ui import render
from orchestrator.cli.ui.arguments import seconds
from orchestrator.cli.ui.spec_flags import pairs
from orchestrator.cli.ui.terminal import Terminal, print_document, table
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import UsageError


def status(**changes: object) -> RunStatus:
    fields = {"name": "run-1", "handle": "local://run-1", "state": "running", "created": 0.0, "run_hash": "01234567"}
    return RunStatus.model_validate({**fields, **changes})


def test_status_shows_best_checkpoint() -> None:
    best = {"step": 30, "validation_loss": 4.56789, "folder": "/runs/run-1/outputs/checkpoints/step-00000030"}
    assert "  best       checkpoint of step 30, validation loss 4.5679" in render.status_text(
        status(best_checkpoint=best)
    )
    assert "best" not in render.status_text(status())


def test_tables_fit_80_columns() -> None:
    text = table(
        [("n" * 90, "completed", "1/2", "2 min 01 s", "2026-11-21 12:00:00")], ("RUN", "S", "P", "T", "W"), Terminal(80)
    )
    header, row = text.splitlines()
    assert max(len(header), len(row)) <= 80
    assert row.startswith("nnn")
    assert "..." in row


def test_failed_run_shows_reason_and_next_commands(capsys: pytest.CaptureFixture[str]) -> None:
    failed = status(state="failed", reason="error[data]: bad\n  fix  --data PATH", exit_code=2)
    text = render.status_text(failed)
    assert "reason     error[data]: bad" in text
    assert "--data PATH" in text
    render.next_commands(failed)
    err = capsys.readouterr().err
    assert "orchestrator resume run-1" in err
    assert "cancel" not in err
    render.next_commands(status())
    assert "orchestrator cancel run-1" in capsys.readouterr().err


def test_status_shows_the_metrics_of_a_command() -> None:
    done = status(kind="command", step=3, metrics={"loss": 2.3, "train_mlm_loss": 1.0, "a\x1b[31m": 3e-7})
    lines = render.status_text(done).splitlines()
    assert "  metrics    loss 2.3, train_mlm_loss 1, a\\x1b[31m 3e-07" in lines
    assert not any(line.startswith("  train ") for line in lines)


def test_status_has_one_line_of_metrics_per_split() -> None:
    done = status(
        state=RunState.COMPLETED,
        step=5,
        steps=5,
        metrics={"validation_mlm_loss": 5.25, "validation_unigram_entropy": 5.75, "train_mlm_accuracy": 0.125},
    )
    lines = render.status_text(done).splitlines()
    assert "  validation  MLM loss 5.2500, unigram entropy 5.7500" in lines
    assert "  train       MLM accuracy 12.5%" in lines
    assert "  step        5 of 5" in lines


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0)]
)
def test_seconds_parses_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_pairs_parses_key_value_words() -> None:
    assert pairs(["A=1", "B=x=y"], "--env") == {"A": "1", "B": "x=y"}
    for words in (["A"], ["=1"]):
        with pytest.raises(UsageError, match="must be KEY=VALUE"):
            pairs(words, "--tag")


def test_print_document_writes_json_and_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"a": [1, None]}, "json")
    assert json.loads(capsys.readouterr().out) == {"a": [1, None]}
    print_document({"a": [1, None]}, "yaml")
    assert capsys.readouterr().out == "a:\n- 1\n- null\n"
