"""Two phases of pretraining by the command line: the second starts from weights and moments of the first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import MICRO, Console, write_spec
from train_jobs.artifacts.lineage import read_lineage

pytestmark = pytest.mark.usefixtures("untracked")


@pytest.mark.slow
def test_second_phase_starts_from_last_run(console: Console, corpus: Path) -> None:
    write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4})
    first = console("submit", "pretrain", "-f", "job.yaml", "-n", "first", "-o", "json")
    assert first.code == 0, first.err

    second = {"recipe": "tiny", "data": {"text": [str(corpus)], "sequence_length": 16, "validation_fraction": 0.2}}
    (console.cwd / "second.yaml").write_text(json.dumps(second))
    words = ["pretrain", "-f", "second.yaml", "-n", "second", "--set", "train.steps=3", "--set", "validation.every=3"]
    words += ["--set", "train.global_batch_size=64", "--set", "compute.threads_per_process=1", "--phase-from", "@last"]
    wrong = console("validate", *words, "--set", "optimizer.name=lamb", "--set", "model.num_hidden_layers=2")
    assert wrong.code == 2
    assert "--set: optimizer.name: lamb, but the earlier phase has the moments of adamw" in wrong.err
    assert "--set: model.num_hidden_layers: 2, but the earlier phase has 1" in wrong.err

    planned = console("plan", *words)
    assert f"from        {first.json['name']}, step 4, weights " in planned.out
    assert "model.hidden_size" not in planned.out.partition("request to")[0]
    done = console("submit", *words, "-o", "json")
    assert done.code == 0, done.err
    folder = console.folder(done.json["name"])
    assert "phase      weights and moments of step 4" in (folder / "logs" / "rank-0.log").read_text()
    lineage = read_lineage(folder / "outputs" / "model" / "lineage.json")
    assert lineage is not None
    earlier = lineage.parents(lineage.head)[1]
    assert earlier == read_lineage(console.folder(first.json["name"]) / "outputs" / "lineage.json").head
    tags = json.loads((folder / "tags.json").read_text())
    assert (tags["orchestrator.parent"], tags["orchestrator.parent_lineage"]) == (first.json["handle"], earlier.hash)
    shown = console("status", done.json["name"], "--lineage").out
    assert f"phase    after step 4: weights {lineage.head.facts['phase']['weights'][:8]}" in shown
    assert [link.kind for link in lineage.links] == ["data", "pretrain", "pretrain"]  # one text, one store
    assert shown.count("verified") == 3


@pytest.mark.slow
def test_one_command_runs_both_phases(console: Console, corpus: Path) -> None:
    """`--recipe base-512` runs base, then itself from its result; the same command again runs neither."""
    spec = {
        "recipe": "base-512",
        "data": {"text": [str(corpus)], "sequence_length": 48, "vocab_size": 256, "validation_fraction": 0.2},
        "earlier": {"data": {"sequence_length": 32}, "train": {"steps": 4, "micro_batch_size": 8}},
        "train": {"steps": 3, "global_batch_size": 8, "log_every": 1},
        "tags": {"team.name": "nlp"},
    }
    spec |= {key: MICRO[key] for key in ("model", "validation", "checkpoint", "compute")}
    (console.cwd / "job.yaml").write_text(json.dumps(spec))
    words = ["pretrain", "-f", "job.yaml"]
    planned = console("submit", *words, "--dry-run")
    assert planned.code == 0, planned.err
    first, _, second = planned.out.partition("phase 2 of 2")
    assert "steps       4, 32 sequences" in first
    assert "steps       3, 24 sequences" in second
    assert "earlier.train.steps = 4" in second

    done = console("submit", *words, "-o", "json")
    assert done.code == 0, done.err
    runs = console("list", "-o", "json").json
    later, earlier = (run["name"] for run in runs if run["state"] == "completed")
    assert (done.json["name"], earlier.rpartition("-")[0]) == (later, "pretrain-base")
    lineage = read_lineage(console.folder(later) / "outputs" / "lineage.json")
    assert lineage is not None
    assert lineage.parents(lineage.head)[1].name == earlier
    config = json.loads((console.folder(later) / "outputs" / "model" / "config.json").read_text())
    assert config["trained_positions"] == 48

    again = console("submit", *words, "-o", "json")
    assert again.json["name"] == later
    assert f"phase 1 of 2: completed run {earlier}" in again.err
    assert len(console("list", "-o", "json").json) == 2


def test_wrong_value_of_earlier_phase_is_reported(console: Console, corpus: Path) -> None:
    words = ["plan", "pretrain", "--recipe", "base-512", "--data", str(corpus), "--set", "earlier.train.stpes=4"]
    refused = console(*words)
    assert refused.code == 2
    assert '--set: train.stpes: unknown key (did you mean "steps"?)' in refused.err
