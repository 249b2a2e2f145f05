"""A run planned from a real checkpoint takes its shape, vocabulary and case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Finished
from train_jobs.artifacts.files import file_sha256


def test_checkpoint_sets_shape_and_vocabulary(orchestrator: Callable[..., Finished], minilm: Path) -> None:
    words = ("pretrain", "--recipe", "continue", "--from", str(minilm), "-o", "json")
    valid = orchestrator("validate", *words)
    assert valid.code == 0, valid.err
    plan = orchestrator("plan", *words).json["plan"]
    assert valid.json == {"valid": True, "name": plan["name"]}
    assert {key: plan["job"]["model"][key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size")} == {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "intermediate_size": 1536,
    }
    assert plan["job"]["model"]["layer_norm_eps"] == 1e-12
    assert plan["job"]["data"]["vocabulary"] == str(minilm / "vocab.txt")
    assert plan["job"]["data"]["lowercase"] is True
    assert plan["estimates"]["parameters"] == 22_713_216 + 6 * 384 + 147_840 + 768 + 30_528 + 770
    assert plan["parent"]["facts"]["weights"] == file_sha256(minilm / "model.safetensors")


def test_settings_contradicting_checkpoint_are_all_named(orchestrator: Callable[..., Finished], minilm: Path) -> None:
    sets = ("--set", "model.hidden_size=512", "--set", "data.lowercase=false")
    refused = orchestrator("validate", "pretrain", "--from", str(minilm), *sets)
    assert refused.code == 2
    assert "model.hidden_size: 512, but the initial model has 384" in refused.err
    assert "data.lowercase: False, but the initial model has True" in refused.err
