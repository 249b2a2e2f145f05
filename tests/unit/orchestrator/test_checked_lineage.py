"""Checks of a lineage against local stores, models of runs and external models, and their output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.runs.lineage_report import CheckedLineage, Verdict, lineage_text
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError, StorageError
from train_jobs.artifacts.files import checked_json, file_sha256
from train_jobs.artifacts.lineage import Attempt, DataFacts, ExternalFacts, Lineage, Link, PretrainFacts, store_digest

START = Attempt(
    started="2026-11-21T10:00:00+00:00",
    step=0,
    processes=2,
    nodes=1,
    threads=1,
    device="cpu",
    hardware="A CPU",
    precision="bf16",
)


def make_store(home: Path, key: str, licence: str | None = None) -> Link:
    """Create a token store of two shards; return its link."""
    folder = home / "token-stores" / key
    folder.mkdir(parents=True)
    for name in ("shard-00000.arrow", "shard-00001.arrow", "vocab.txt"):
        (folder / name).write_text(f"{key} {name}")
    shards = [
        {"file": name, "sha256": file_sha256(folder / name)} for name in ("shard-00000.arrow", "shard-00001.arrow")
    ]
    (folder / "manifest.json").write_text(json.dumps({"key": key, "shards": shards}))
    facts = DataFacts(
        sources=[{"name": "notes.txt", "files": 1200, "total_bytes": 5, "sha256": "0" * 64}],
        text="1" * 64,
        license=licence,
        store=key,
        content=store_digest(shards),
        vocabulary=file_sha256(folder / "vocab.txt"),
        vocab_size=4096,
        lowercase=True,
        validation_fraction=0.05,
        unigram_entropy=5.0,
        documents={"train": 1000, "validation": 50},
        tokens={"train": 20000, "validation": 1000},
    )
    return Link.make("data", "notes.txt", facts)


def make_run(home: Path, name: str, before: Lineage, parents: list[Link], **facts: Any) -> tuple[RunFolder, Lineage]:
    """Create a completed run with a model and a lineage."""
    run = RunFolder(home / "runs" / name)
    run.model.mkdir(parents=True)
    (run.model / "model.safetensors").write_text(f"weights of {name}")
    known: dict[str, Any] = {
        "run": f"local://{name}",
        "snapshot": "5" * 64,
        "commit": "6" * 40,
        "dirty": True,
        "attempts": [START],
        "steps": 1200,
        "sequences": 9600,
        "metrics": {"mlm_loss": 5.25},
        "weights": file_sha256(run.model / "model.safetensors"),
        **{key: {} for key in ("config", "commands", "packages")},
        **facts,
    }
    lineage = before.followed_by(
        *parents,
        Link.make("pretrain", name, PretrainFacts(run_hash="", parameters=8, absent=[], **known), parents=parents),
    )
    run.lineage.write_text(lineage.text())
    (run.path / "lock").touch()
    run.write_state(LocalState(state=RunState.COMPLETED, created=1.0))
    (run.path / "config.json").write_text(json.dumps({"init_from": None}))
    (run.path / "request.json").write_text(json.dumps({"token_stores": str(home / "token-stores")}))
    return run, lineage


def make_child(home: Path, parent: Lineage, folder: Path) -> tuple[RunFolder, Lineage]:
    """Create a run on another text that started from the model in a folder."""
    run, lineage = make_run(home, "beta-2", parent, [make_store(home, "b" * 16), parent.head])
    (run.path / "config.json").write_text(json.dumps({"init_from": str(folder)}))
    return run, lineage


@pytest.fixture
def alpha(tmp_path: Path) -> tuple[RunFolder, Lineage]:
    """Create a run with random initial weights."""
    return make_run(tmp_path, "alpha-1", Lineage(links=()), [make_store(tmp_path, "a" * 16)])


def check_lineage(home: Path, name: str) -> tuple[CheckedLineage, list[Verdict]]:
    found = LocalBackend(home).lineage(name)
    return found, [found.checks[link.hash].verdict for link in found.lineage.links]


def test_unchanged_files_pass_all_checks(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    run, lineage = make_child(tmp_path, alpha[1], alpha[0].model)
    found, verdicts = check_lineage(tmp_path, "beta-2")
    assert found.lineage == lineage
    assert [link.name for link in lineage.links] == ["notes.txt", "alpha-1", "notes.txt", "beta-2"]
    assert verdicts == ["verified"] * 4
    where = [found.checks[link.hash].where for link in lineage.links]
    stores = tmp_path / "token-stores"
    assert where == [str(path) for path in (stores / ("a" * 16), alpha[0].model, stores / ("b" * 16), run.model)]


@pytest.mark.parametrize("name", ["shard-00001.arrow", "vocab.txt", "manifest.json"])
def test_changed_store_is_reported(tmp_path: Path, alpha: tuple[RunFolder, Lineage], name: str) -> None:
    path = tmp_path / "token-stores" / ("a" * 16) / name
    path.write_text(path.read_text().replace("a", "b"))
    found, verdicts = check_lineage(tmp_path, "alpha-1")
    assert verdicts == ["changed", "verified"]
    assert str(path.parent) in str(found.checks[alpha[1].links[0].hash].why)


def test_manifest_that_differs_from_its_checksum_is_damage(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    path = tmp_path / "token-stores" / ("a" * 16) / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(checked_json(document, indent=1))
    assert check_lineage(tmp_path, "alpha-1")[1] == ["verified", "verified"]
    path.write_text(path.read_text().replace('"key": "a', '"key": "b'))
    found, verdicts = check_lineage(tmp_path, "alpha-1")
    assert verdicts == ["changed", "verified"]
    assert found.checks[alpha[1].links[0].hash].why == f"{path.parent} is damaged"


@pytest.mark.parametrize("name", ["shard-00001.arrow", "manifest.json", "vocab.txt"])
def test_missing_or_incomplete_store_is_absent(tmp_path: Path, alpha: tuple[RunFolder, Lineage], name: str) -> None:
    (tmp_path / "token-stores" / ("a" * 16) / name).unlink()
    assert check_lineage(tmp_path, "alpha-1")[1] == ["absent", "verified"]


def test_changed_parent_weights_are_reported(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    make_child(tmp_path, alpha[1], alpha[0].model)
    assert check_lineage(tmp_path, "beta-2")[1] == ["verified"] * 4  # the hashes are cached
    (alpha[0].model / "model.safetensors").write_text("weights of another")
    found, verdicts = check_lineage(tmp_path, "beta-2")
    assert verdicts == ["verified", "changed", "verified", "verified"]
    check = found.checks[alpha[1].head.hash]
    assert check.where == str(alpha[0].model)
    assert file_sha256(alpha[0].model / "model.safetensors")[:8] in str(check.why)


def test_missing_parent_is_absent_with_its_ancestors(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    make_child(tmp_path, alpha[1], alpha[0].model)
    shutil.rmtree(alpha[0].path)
    assert check_lineage(tmp_path, "beta-2")[1] == ["verified", "absent", "verified", "verified"]


def test_external_model_found_at_original_location(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_text("old weights")
    weights = file_sha256(folder / "pytorch_model.bin")
    facts = ExternalFacts(weights=weights, file="pytorch_model.bin", architectures=[], vocabulary="", revision=None)
    make_child(tmp_path, Lineage(links=(Link.make("external", "bert", facts),)), folder)
    assert check_lineage(tmp_path, "beta-2")[1] == ["verified"] * 3
    (folder / "pytorch_model.bin").write_text("other weights")
    assert check_lineage(tmp_path, "beta-2")[1] == ["changed", "verified", "verified"]


def test_grandparent_is_found_through_its_child(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    weights = file_sha256(folder / "model.safetensors")
    facts = ExternalFacts(weights=weights, file="model.safetensors", architectures=[], vocabulary="", revision=None)
    child, lineage = make_child(tmp_path, Lineage(links=(Link.make("external", "bert", facts),)), folder)
    grandchild, _ = make_run(tmp_path, "gamma-3", lineage, [lineage.links[1], lineage.head])
    (grandchild.path / "config.json").write_text(json.dumps({"init_from": str(child.model)}))
    assert check_lineage(tmp_path, "gamma-3")[1] == ["verified"] * 4


def test_copied_model_wins_over_run_of_same_name(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    shutil.copytree(alpha[0].model, tmp_path / "carried")
    (alpha[0].model / "model.safetensors").write_text("of another run of that name")
    make_child(tmp_path, alpha[1], tmp_path / "carried")
    assert check_lineage(tmp_path, "beta-2")[1] == ["verified"] * 4


@pytest.mark.parametrize(
    ("handle", "verdict"),
    [
        ("local://alpha-1", "verified"),
        ("local://other", "absent"),
        ("azure://somewhere/alpha-1", "absent"),
        (None, "absent"),
    ],
)
def test_run_is_searched_where_its_handle_points(tmp_path: Path, handle: str | None, verdict: str) -> None:
    _, lineage = make_run(tmp_path, "alpha-1", Lineage(links=()), [make_store(tmp_path, "a" * 16)], run=handle)
    make_child(tmp_path, lineage, tmp_path / "gone")
    assert check_lineage(tmp_path, "beta-2")[1][1] == verdict


def test_running_run_has_open_lineage(tmp_path: Path) -> None:
    store = make_store(tmp_path, "a" * 16)
    unknown = {"steps": None, "sequences": None, "metrics": None, "weights": None}
    make_run(tmp_path, "alpha-1", Lineage(links=()), [store], **unknown)
    found, verdicts = check_lineage(tmp_path, "alpha-1")
    assert verdicts == ["verified", "open"]
    text = lineage_text(found)
    assert "trained  begun 2026-11-21T10:00:00+00:00, bf16, 2 x cpu" in text
    assert "here     the run has not completed" in text
    assert "result" not in text


def test_missing_or_damaged_lineage_is_an_error(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    run = alpha[0]
    run.lineage.write_text(run.lineage.read_text().replace("alpha-1", "alpha-2", 1))
    with pytest.raises(ConflictError) as caught:
        LocalBackend(tmp_path).lineage("alpha-1")
    assert "link 2 of 2, pretrain alpha-2" in caught.value.facts["why"]
    run.lineage.unlink()
    with pytest.raises(NotFoundError, match="run alpha-1 has no lineage yet"):
        LocalBackend(tmp_path).lineage("alpha-1")
    with pytest.raises(NotFoundError, match="unknown run 'gamma'"):
        LocalBackend(tmp_path).lineage("gamma")


@pytest.mark.parametrize("name", ["config.json", "request.json"])
def test_torn_document_of_a_run_is_named(tmp_path: Path, alpha: tuple[RunFolder, Lineage], name: str) -> None:
    (alpha[0].path / name).write_text('{"half": ')
    with pytest.raises(StorageError, match="cannot read run alpha-1: it is damaged") as caught:
        LocalBackend(tmp_path).lineage("alpha-1")
    assert str(caught.value.facts["reason"]).startswith(f"{name}: ")


def test_lineage_without_config_is_checked(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    """The store is found among the token stores; where the run left its model is unknown."""
    (alpha[0].path / "config.json").unlink()
    assert check_lineage(tmp_path, "alpha-1")[1] == [Verdict.VERIFIED, Verdict.ABSENT]


def test_chain_prints_from_top_to_bottom_in_80_columns(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    make_child(tmp_path, alpha[1], alpha[0].model)
    (alpha[0].model / "model.safetensors").write_text("weights of another")
    found = check_lineage(tmp_path, "beta-2")[0]
    text = lineage_text(found)
    assert max(len(line) for line in text.splitlines()) <= 80
    blocks = [block.splitlines() for block in text.split("\n\n")]
    assert [block[0] for block in blocks] == ["data notes.txt", "pretrain alpha-1", "data notes.txt", "pretrain beta-2"]
    hashes = [link.hash[:8] for link in found.lineage.links]
    assert [block[1] for block in blocks] == [f"  hash     {hash_}" for hash_ in hashes]
    assert blocks[0][2:] == [
        "  text     1,200 files, sha256 11111111, licence not stated",
        "  tokens   21,000 in 1,050 documents, 4,096 pieces, lower case, accents stripped",
        f"  store    {'a' * 16}",
        "  here     verified",
    ]
    assert blocks[3][2:] == [
        f"  from     {hashes[2]}, {hashes[1]}",
        "  trained  1,200 steps, 9,600 sequences, bf16, 2 x cpu",
        "  result   validation MLM loss 5.2500",
        "  code     snapshot 55555555, commit 66666666 and changes",
        f"  weights  {str(found.lineage.head.weights)[:8]}",
        "  here     verified",
    ]
    assert " ".join(" ".join(blocks[1]).split()).find("here changed: the weights in") > 0


def test_unknown_facts_are_omitted(tmp_path: Path) -> None:
    unknown = {"snapshot": None, "commit": None, "dirty": None, "metrics": {"mlm_loss": None}}
    make_run(tmp_path, "alpha-1", Lineage(links=()), [make_store(tmp_path, "a" * 16, "mit")], **unknown)
    text = lineage_text(check_lineage(tmp_path, "alpha-1")[0])
    assert "code" not in text
    assert "result" not in text
    assert "licence mit" in text
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "token-stores")
    clean = {"commit": None, "dirty": None}
    make_run(tmp_path, "alpha-1", Lineage(links=()), [make_store(tmp_path, "a" * 16)], **clean)
    assert "  code     snapshot 55555555\n" in lineage_text(check_lineage(tmp_path, "alpha-1")[0])


def test_lineage_document_unchanged_with_checks(tmp_path: Path, alpha: tuple[RunFolder, Lineage]) -> None:
    document = json.loads(json.dumps(check_lineage(tmp_path, "alpha-1")[0].as_dict()))
    checks = document.pop("checks")
    assert document == json.loads(alpha[0].lineage.read_text())
    assert checks[alpha[1].head.hash] == {"verdict": "verified", "where": str(alpha[0].model), "why": None}
    assert checks.keys() == {link.hash for link in alpha[1].links}
