"""The row of a plan that shows how sources of text are mixed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs.base import Plan
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.specs.resolved import Flag
from tests.unit.corpus.small_corpora import prepare, sources
from train_jobs.artifacts.source_mixture import mixture_text
from train_jobs.config import DataConfig
from train_jobs.prepare import text_use


def plan_of(folder: Path, **data: Any) -> Plan:
    flags = {f"data.{key}": Flag(value, "--set") for key, value in data.items()} | {"compute.device": Flag("cpu", "")}
    return make_plan(resolve_spec("pretrain", flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""}), home=folder / "home")


def sources_row(folder: Path, **data: Any) -> str | None:
    """Return the row `sources` of the plan of a pretraining."""
    return dict(plan_of(folder, **data).facts()).get("sources")


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


def test_epochs_count_weights(tmp_path: Path, text: list[dict[str, Any]]) -> None:
    """Three equal sources, one with weight 3: an epoch is five of them long, and not three."""
    once = [{**one, "weight": 1} for one in text]
    store = prepare(DataConfig.model_validate({"text": text, "vocab_size": 300}), tmp_path / "store")
    plain = prepare(DataConfig.model_validate({"text": once, "vocab_size": 300}), tmp_path / "plain")

    def epochs(**data: Any) -> float:
        steps = dict(plan_of(tmp_path, **data).facts())["steps"]
        (found,) = re.findall(r"about ([0-9.,]+) epochs", steps)
        return float(found.replace(",", ""))

    assert epochs(text=once) / epochs(text=text) == pytest.approx(5 / 3, rel=0.1)
    assert epochs(store=str(plain.folder)) / epochs(store=str(store.folder)) == pytest.approx(5 / 3, rel=0.1)


def test_warning_names_source_that_is_read_most(tmp_path: Path, text: list[dict[str, Any]]) -> None:
    text[1]["weight"] = 50
    found = " ".join(plan_of(tmp_path, text=text).warnings)
    assert re.search(r"[0-9,]+ passes over source-1\.txt, of weight 50: beyond 40", found)


def test_source_that_is_held_out_whole_is_named(tmp_path: Path) -> None:
    """A book is one document: at half the text for validation, one seed in two holds it out as a whole."""
    paths = sources(tmp_path, 2, 60)
    book = tmp_path / "book.txt"
    for number in range(20):
        book.write_text(f"Chapter {number}. " + "The whale swam away from the ship of the old captain. " * 60)
        data = {
            "text": [*paths, {"path": str(book), "document": "file"}],
            "vocab_size": 300,
            "validation_fraction": 0.5,
        }
        store = prepare(DataConfig.model_validate(data), tmp_path / f"store-{number}")
        if not any(shard.source == 2 and shard.split == "train" for shard in store.manifest.shards):
            break
    expected = "nothing of book.txt is trained on: all of its documents (1) are held out for validation"
    assert any(line.startswith(f"warning: {expected}") for line in text_use(store))
    plan = plan_of(tmp_path, store=str(store.folder))
    assert any(warning.startswith(expected) for warning in plan.warnings)
    assert "book.txt 0.0%" in dict(plan.facts())["sources"]
