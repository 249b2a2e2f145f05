"""The row of a plan that shows how sources of text are mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.specs.resolved import Flag
from tests.unit.corpus.small_corpora import prepare, sources
from train_jobs.artifacts.source_mixture import mixture_text
from train_jobs.config import DataConfig


def sources_row(folder: Path, **data: Any) -> str | None:
    """Return the row `sources` of the plan of a pretraining."""
    flags = {f"data.{key}": Flag(value, "--set") for key, value in data.items()} | {"compute.device": Flag("cpu", "")}
    resolved = resolve_spec("pretrain", flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""})
    return dict(make_plan(resolved, home=folder / "home").facts()).get("sources")


@pytest.fixture
def text(tmp_path: Path, small_snapshot: None) -> list[dict[str, Any]]:
    paths = sources(tmp_path, 3, 60)
    return [{"path": path, "weight": weight} for path, weight in zip(paths, (1, 3, 1), strict=True)]


def test_plan_of_texts_names_rule_and_weights(tmp_path: Path, text: list[dict[str, Any]]) -> None:
    row = sources_row(tmp_path, text=text)
    assert row is not None
    assert row.startswith("3, mixed in every window of examples by tokens x weight (source-1.txt x 3)")
    assert sources_row(tmp_path, text=text[:1]) is None


def test_plan_of_store_shows_weighted_shares(tmp_path: Path, text: list[dict[str, Any]]) -> None:
    store = prepare(DataConfig.model_validate({"text": text, "vocab_size": 300}), tmp_path / "store")
    tokens = [0, 0, 0]
    for shard in store.manifest.shards:
        if shard.split == "train":
            tokens[shard.source] += sum(shard.tokens)
    share = 3 * tokens[1] / (tokens[0] + 3 * tokens[1] + tokens[2])
    row = sources_row(tmp_path, store=str(store.folder))
    assert row == mixture_text(store.manifest)
    assert row is not None
    assert row.startswith(f"mixed in every window of examples: source-1.txt {share:.1%}, source-")
    assert row.endswith(" (tokens x weight)")
