"""Pinned identities: existing hashes stay the same when code is moved or rewritten.

Snapshot and package versions are fixed here, because they change with every commit and machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.snapshot import Snapshot
from orchestrator.specs.job import EnvironmentSpec
from orchestrator.specs.resolved import Flag
from tests.conftest import SMALL_TEXT, write_bert
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.config import DataConfig
from train_jobs.corpus.steps.records import store_key

VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n"
COMPUTE = {"compute.threads_per_process": 1, "compute.processes_per_node": 1, "compute.device": "cpu"}
TABLE = "text\tlabel\na b\tx\nb c\ty\na c\tx\nb b\ty\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Snapshot, "digest", property(lambda _: "0" * 64))
    monkeypatch.setattr(EnvironmentSpec, "describe", lambda _: {"python": "3.11.0"})
    (tmp_path / "text.txt").write_text(SMALL_TEXT)
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    (tmp_path / "train.tsv").write_text(TABLE)
    (tmp_path / "dev.tsv").write_text(TABLE)
    write_bert(tmp_path / "bert", architectures=["BertModel"])
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "values", "name"),
    [
        ("pretrain", {"data.text": ["text.txt"], "train.micro_batch_size": 4}, "pretrain-tiny-f32d00ef"),
        (
            "pretrain",
            {"data.text": ["text.txt"], "data.vocabulary": "vocab.txt", "recipe": "base"},
            "pretrain-base-ed88c1b6",
        ),
        ("pretrain", {"data.text": ["text.txt"], "init_from": "bert", "train.steps": 5}, "pretrain-tiny-a679d7a6"),
        ("prepare", {"data.text": ["text.txt"]}, "prepare-uncased-6035f02c"),
        ("prepare", {"data.text": [{"path": "text.txt", "weight": 2}], "recipe": "cased"}, "prepare-cased-63df2113"),
        (
            "finetune",
            {"data": {"train": "train.tsv", "validation": "dev.tsv", "max_length": 32}, "init_from": "bert"},
            "finetune-own-41bc8466",
        ),
        ("predict", {"model": "bert", "input": ["train.tsv"]}, "predict-train-9b7ba094"),
    ],
)
def test_run_hash_of_each_kind_is_pinned(folder: Path, kind: str, values: dict[str, object], name: str) -> None:
    flags = {key: Flag(value, f"--{key}") for key, value in {**COMPUTE, **values}.items()}
    found = make_plan(resolve_spec(kind, flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""}), home=folder / "home")
    assert found.name == name


def test_store_key_is_pinned(folder: Path) -> None:
    (folder / "text.txt").write_text("One line. And another.\n\nA second document.\n")
    data = DataConfig(text=[folder / "text.txt"], vocab_size=64)
    assert store_key(data, fingerprint(data.text)) == "4228d23491305e32"
    given = DataConfig(text=[folder / "text.txt"], vocabulary=folder / "vocab.txt", lowercase=False)
    assert store_key(given, fingerprint(given.text)) == "ea419f49f2e2f2d6"
