"""From sources to a store to a model by the command line; cancelling, preempting and resuming a preparation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, processes_of, wait_for, write_corpus, write_spec
from tests.mlflow_runs import wait_for_copy
from tests.unit.corpus.small_corpora import contents


@pytest.mark.long
def test_store_is_prepared_shown_and_used_for_training(console: Console, corpus: Path) -> None:
    lines = console.cwd / "more.jsonl"
    more = write_corpus(console.cwd / "more.txt", seed=1).read_text().split("\n\n")
    lines.write_text("".join(json.dumps({"text": document}) + "\n" for document in more))
    store = console.cwd / "store"
    words = ("--data", "corpus.txt", "--data", "more.jsonl", "--store", "store", "--set", "data.vocab_size=256")
    shown = console("submit", "prepare", *words, "--dry-run", "-o", "json").json
    assert shown["plan"]["estimates"]["parts"] == 2
    assert shown["request"]["steps"] is None
    done = console("submit", "prepare", *words, "--tag", "team=nlp", "-o", "json")
    assert done.code == 0, done.err
    status = done.json
    assert (status["kind"], status["state"], status["store"]) == ("prepare", "completed", str(store))
    assert (status["step"], status["steps"]) == (4, None)
    assert status["metrics"]["documents"] == 120
    assert status["handle"] in console("submit", "prepare", *words, "-d").out  # exists already
    shutil.rmtree(store)  # a completed run without its output is not reused
    again = console("submit", "prepare", *words, "-o", "json").json
    assert (again["name"], again["state"]) == (f"{status['name']}-2", "completed")
    vocabulary = store / "vocab.txt"
    vocabulary.write_bytes(vocabulary.read_bytes().replace(b"##", b"#!", 1))
    refused = console("submit", "pretrain", "--data", "store", "--dry-run")
    assert (refused.code, f"the token store is damaged: {vocabulary}" in refused.err) == (2, True), refused.err
    assert "repeat submit prepare" in refused.err
    repaired = console("submit", "prepare", *words, "-o", "json").json
    assert (repaired["name"], repaired["state"]) == (f"{status['name']}-3", "completed")
    assert f"orchestrator submit pretrain --data {store}" in console("status", "@last").err
    report = console("report", "@last")
    assert (report.code, "has no curves" in report.err) == (2, True)

    from mlflow.tracking import MlflowClient

    copied = wait_for_copy(RunFolder(console.folder(status["name"])))  # before a client would create the store itself
    run = MlflowClient(tracking_uri=status["tracking_uri"]).get_run(copied)
    assert (run.info.status, run.data.tags["team"]) == ("FINISHED", "nlp")
    assert run.data.metrics["tokens_documents"] == 120

    write_spec(console.cwd / "job.yaml", data={"sequence_length": 32, "text": ["store"]})
    spec = (console.cwd / "job.yaml").read_text().replace("  vocab_size: 256\n  validation_fraction: 0.2\n", "")
    (console.cwd / "job.yaml").write_text(spec)
    trained = console("submit", "pretrain", "-f", "job.yaml", "-o", "json")
    assert trained.code == 0, trained.err
    assert not list((console.home / "token-stores").glob("*/manifest.json"))
    lineage = console("status", "@last", "--lineage", "-o", "json").json
    (data,) = [link for link in lineage["links"] if link["kind"] == "data"]
    assert data["name"] == "corpus.txt, more.jsonl"
    assert lineage["checks"][data["hash"]]["verdict"] == "verified"


def job_with_damaged_store(console: Console, corpus: Path) -> tuple[Path, Path, bytes]:
    """Train once and flip a bit of the token store; return the spec, the shard and its former content."""
    job = write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4})
    assert console("submit", "pretrain", "-f", str(job)).code == 0
    (shard,) = console.home.glob("token-stores/*/shard-*-train.arrow")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    return job, shard, whole


@pytest.mark.long
def test_store_that_a_run_finds_damaged_is_made_again(console: Console, corpus: Path) -> None:
    job, shard, whole = job_with_damaged_store(console, corpus)
    failed = console("submit", "pretrain", "-f", str(job), "--set", "train.steps=5", "-o", "json").json
    assert failed["state"] == "failed"
    assert f"the token store is damaged: {shard}" in failed["reason"]
    resumed = console("resume", failed["name"], "-o", "json").json
    assert (resumed["state"], resumed["step"]) == ("completed", 5)
    assert shard.read_bytes() == whole
    assert not list(shard.parent.glob("damaged.txt"))


@pytest.mark.long
def test_damaged_store_is_no_failure_of_a_trial(console: Console, corpus: Path) -> None:
    """A disk that flips a bit is no fault of a trial: it is resumed, which makes the store again."""
    job, shard, whole = job_with_damaged_store(console, corpus)
    sweep = {"trial": str(job), "space": {"optimizer.learning_rate": [0.01, 0.02]}, "sampling": "grid"}
    (console.cwd / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    done = console("submit", "sweep", "-f", "sweep.yaml")
    assert done.code == 0, done.err
    shown = console("sweep", "show", "@last", "-o", "json").json
    assert [row["state"] for row in shown["rows"]] == ["completed", "completed"]
    assert shard.read_bytes() == whole
    ends = [row["attempts"] for row in console("list", "-o", "json").json if "sweep" in row["name"]]
    assert any(end["cause"] == "damage" for attempts in ends for end in attempts)


@pytest.mark.long
def test_data_show_and_verify_report_contents_and_damage(console: Console, corpus: Path) -> None:
    from train_jobs.artifacts.fingerprints import fingerprint
    from train_jobs.config import TextConfig
    from train_jobs.corpus.pipeline import PreparationProgress
    from train_jobs.corpus.preparation import make_store

    data = TextConfig(text=[str(corpus)], vocab_size=256, validation_fraction=0.2)
    progress = PreparationProgress(lambda _: None)
    store = make_store(data, console.cwd / "store", found=fingerprint(data.text), progress=progress)
    shown = console("data", "show", "store", "--png", "lengths.png", "-o", "json").json
    assert shown["manifest"]["sources"][0]["name"] == "corpus.txt"
    assert sum(shown["lengths"]["train"]["tokens of a sentence"]["counts"]) == store.manifest.splits["train"].sentences
    assert "[MASK]" in shown["example"]["text"]
    assert len(shown["samples"]) == 3
    assert (console.cwd / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert console("data", "verify", "store").out == "valid: store\n"
    shard = store.folder / "shard-00000-train.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    wrong = console("data", "verify", "store")
    assert wrong.code == 1
    assert wrong.out.startswith("shard-00000-train.arrow: its SHA-256 is ")
    (store.folder / "manifest.json").unlink()
    gone = console("data", "show", "store", "-o", "json")
    assert (gone.code, gone.json["error"]["kind"]) == (2, "data")


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "executor"), [("local", "auto"), ("debug", "auto"), ("local", "dask")])
def test_preparation_is_preempted_cancelled_and_resumed(console: Console, backend: str, executor: str) -> None:
    for number in range(6):
        write_corpus(console.cwd / f"text-{number}.txt", documents=10_000, seed=number)
    words = [word for number in range(6) for word in ("--data", f"text-{number}.txt")]
    words += ["--set", "data.vocab_size=300", "--set", "data.workers=1", "-b", backend]
    whole = console("submit", "prepare", *words, "--store", "whole", "-o", "json")
    words += ["--executor", executor]
    assert whole.code == 0, whole.err

    def begun(store: str) -> bool:
        return (console.cwd / store / "parts" / "documents-00001.json").exists()

    command = console.start("submit", "prepare", *words, "--store", "one", "--max-restarts", "1", "-n", "one")
    wait_for(lambda: begun("one"), what="a part of one")
    assert console("preempt", "one", "-b", backend).code == 0
    command.communicate(timeout=120)
    assert command.returncode == 0
    status = console("status", "one", "-b", backend, "-o", "json").json
    assert [attempt["state"] for attempt in status["attempts"]] == ["preempted", "completed"]

    command = console.start("submit", "prepare", *words, "--store", "two", "-n", "two")
    wait_for(lambda: begun("two"), what="a part of two")
    assert console("cancel", "two", "-b", backend).code == 0
    command.communicate(timeout=120)
    assert command.returncode == 75
    resumed = console("resume", "two", "-b", backend, "-o", "json")
    assert resumed.json["state"] == "completed", resumed.err
    for store in ("one", "two"):
        assert contents(console.cwd / store) == contents(console.cwd / "whole")
    assert [found for name in ("one", "two") for found in processes_of(console.folder(name)).values()] == []
