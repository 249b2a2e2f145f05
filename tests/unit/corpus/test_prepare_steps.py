"""The steps of text preparation: skipped if valid, repeated otherwise, and their refusals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.corpus.small_corpora import contents, documents_of, flips_of_one_bit, prepare, sentences, sources
from train_jobs.artifacts.files import hold
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.store_manifest import SPLITS
from train_jobs.artifacts.text_rule import bert_rule
from train_jobs.config import ConflictError, DataError, StorageError, TextConfig
from train_jobs.corpus.executors import worker_pool as workers
from train_jobs.corpus.executors.node import Node
from train_jobs.corpus.pipeline import PreparationProgress
from train_jobs.corpus.steps import documents as extraction
from train_jobs.corpus.steps.documents import HASHES, find_duplicates, hashes_file, read_duplicates, stretches
from train_jobs.corpus.steps.records import VocabularyRecord, describe_file, read_record, store_key, write_record
from train_jobs.corpus.store.token_store import TokenStore


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def changed_files(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name in after if after[name] != before.get(name)}


def test_manifest_describes_sources(tmp_path: Path) -> None:
    text = sources(tmp_path, 2)
    doubled = tmp_path / "doubled.jsonl"
    lines = [json.dumps({"text": document}) for document in documents_of(0)[:5]]
    fresh = json.dumps({"text": " ".join(sentences(99, 5))})
    doubled.write_text("\n".join([*lines, fresh, fresh, json.dumps({"text": "short"})]) + "\n")
    rules = {"min_characters": 20}
    data = TextConfig(
        text=[*text, {"path": [str(doubled)], "weight": 0.5, "name": "twice"}], clean=rules, vocab_size=200
    )
    manifest = prepare(data, tmp_path / "store").manifest
    first, second, third = manifest.sources
    assert (first.name, second.name, third.name) == ("source-0.txt", "source-1.txt", "twice")
    assert (first.weight, third.weight) == (1.0, 0.5)
    assert (first.read, first.documents, first.dropped) == (30, 30, {})
    assert (third.read, third.documents, third.dropped) == (8, 1, {"duplicate": 6, "unfit": 1})
    assert sum(source.tokens for source in manifest.sources) == sum(c.tokens for c in manifest.splits.values())
    assert {shard.source for shard in manifest.shards} == {0, 1, 2}
    assert [step.name for step in manifest.steps] == ["documents", "duplicates", "vocabulary", "tokens"]
    assert "pyarrow" in manifest.packages


def test_duplicates_are_kept_if_configured(tmp_path: Path) -> None:
    text = [*sources(tmp_path, 1), *sources(tmp_path, 1)]
    data = TextConfig(text=text, clean={"drop_duplicates": False}, vocab_size=200)
    manifest = prepare(data, tmp_path / "store").manifest
    assert [source.documents for source in manifest.sources] == [30, 30]


@pytest.mark.parametrize("drop", [True, False])
def test_copy_with_other_line_breaks_is_same_document(tmp_path: Path, drop: bool) -> None:
    """A licence wrapped at two widths is one document, or two of the same split."""
    documents = documents_of(0)
    wrapped = tmp_path / "wrapped.txt"
    own = [" ".join(sentences(99, 5))] if drop else []  # a source without a document of its own is refused
    wrapped.write_text("\n\n".join([*(document.replace(" ", "\n") for document in documents), *own]))
    text = [*sources(tmp_path, 1), wrapped]
    data = TextConfig(text=text, clean={"drop_duplicates": drop}, vocab_size=200, validation_fraction=0.3)
    manifest = prepare(data, tmp_path / "store").manifest
    assert [source.documents for source in manifest.sources] == [30, 1 if drop else 30]
    if not drop:
        assert {(shard.split, shard.source, sum(shard.tokens)) for shard in manifest.shards} == {
            (split, source, manifest.splits[split].tokens // 2) for split in SPLITS for source in (0, 1)
        }


@pytest.mark.parametrize("range_size", [1 << 22, 40, 7])
def test_duplicate_documents_first_kept_in_any_ranges(tmp_path: Path, range_size: int) -> None:
    import pyarrow as pa

    draw = np.random.default_rng(1)
    parts, seen, expected = [draw.integers(0, 60, 50) for _ in range(3)], set(), []
    spread = draw.integers(0, 1 << 63, 60, dtype=np.uint64) * np.uint64(2)
    spread[1] = spread[0]  # two documents that differ only in the second half of their hash
    for number, values in enumerate(parts):
        order = np.lexsort((values, spread[values]))
        columns = [spread[values][order], values[order].astype(np.uint64), order.astype(np.uint32)]
        with (tmp_path / hashes_file(number)).open("wb") as stream, pa.ipc.new_file(stream, HASHES) as writer:
            writer.write_batch(pa.record_batch([pa.array(column) for column in columns], schema=HASHES))
        expected.append([place for place, value in enumerate(values) if value in seen or seen.add(value)])
    record = find_duplicates(tmp_path, [50, 50, 50], key="k", at_once=range_size)
    assert [read_duplicates(tmp_path, stretch).tolist() for stretch in stretches(record)] == expected
    assert record.dropped == [len(places) for places in expected]


@pytest.mark.parametrize(
    "damage",
    ["torn record", "record of another key", "short file", "flipped bit", "no file", "torn shard", "no vocabulary"],
)
def test_only_damaged_files_are_rebuilt(tmp_path: Path, damage: str) -> None:
    data = TextConfig(text=sources(tmp_path, 3), vocab_size=200)
    whole = prepare(data, tmp_path / "whole")
    folder = prepare(data, tmp_path / "store", keep_steps=True).folder
    parts = folder / "parts"
    (folder / "manifest.json").unlink()
    document, record = parts / "documents-00001.arrow", parts / "documents-00001.json"
    shard = folder / "shard-00001-train.arrow"
    before = times(parts) | times(folder)
    match damage:
        case "torn record":
            record.write_bytes(record.read_bytes()[:50])
        case "record of another key":
            record.write_text(record.read_text().replace('"key": "', '"key": "0'))
        case "short file":
            document.write_bytes(document.read_bytes()[:-1])
        case "flipped bit":
            content = bytearray(document.read_bytes())
            content[len(content) // 2] ^= 1
            document.write_bytes(content)
        case "no file":
            document.unlink()
        case "torn shard":
            shard.write_bytes(shard.read_bytes()[:-8] + b"12345678")
        case "no vocabulary":
            (folder / "vocab.txt").unlink()
    lines: list[str] = []
    prepare(data, folder, say=lines.append)
    expected = {
        "torn shard": {"tokens-00001.json", "shard-00001-train.arrow", "shard-00001-validation.arrow"},
        "no vocabulary": {"vocabulary.json", "vocab.txt"},
    }.get(damage, {"documents-00001.json", "documents-00001.arrow", "hashes-00001.arrow"})
    assert contents(folder) == contents(whole.folder)
    assert not parts.exists()
    if damage in {"flipped bit", "torn shard"}:
        assert any("does not match its record" in line for line in lines)
    again = changed_files(before, times(folder)) - {"manifest.json"}
    assert again == {name for name in expected if not name.startswith(("documents", "hashes", "tokens", "vocabulary."))}


def test_new_source_keeps_parts_of_other_sources(tmp_path: Path) -> None:
    vocabulary = prepare(TextConfig(text=sources(tmp_path, 1), vocab_size=200), tmp_path / "first").vocabulary
    text = sources(tmp_path, 3)
    folder = tmp_path / "store"
    prepare(TextConfig(text=text[:2], vocabulary=vocabulary), folder, keep_steps=True)
    before = times(folder / "parts") | times(folder)
    data = TextConfig(text=text, vocabulary=vocabulary)
    lines: list[str] = []
    store = prepare(data, folder, keep_steps=True, say=lines.append)
    assert "documents: 2 of 3 parts are done already" in lines
    assert "tokens: 2 of 3 parts are done already" in lines
    again = changed_files(before, times(folder / "parts") | times(folder))
    assert {name for name in again if "-0000" in name} == {
        *(f"{name}-00002.{end}" for name, end in (("documents", "arrow"), ("documents", "json"), ("tokens", "json"))),
        *("hashes-00002.arrow", "shard-00002-train.arrow", "shard-00002-validation.arrow"),
    }
    assert len(store.manifest.sources) == 3


def test_store_of_other_text_is_not_overwritten(tmp_path: Path) -> None:
    first, second = sources(tmp_path, 2)
    prepare(TextConfig(text=[first], vocab_size=200), tmp_path / "store")
    before = contents(tmp_path / "store")
    with pytest.raises(ConflictError, match="another text or other settings") as caught:
        prepare(TextConfig(text=[second], vocab_size=200), tmp_path / "store")
    assert "rm -r" in str(caught.value.fix)
    assert contents(tmp_path / "store") == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def mark(path: Path) -> None:
    flip(path)
    with pytest.raises(DataError, match="the token store is damaged"):
        TokenStore.open(path.parent).block("validation", 0)


@pytest.mark.parametrize(
    ("pattern", "harm", "why"),
    [
        ("shard-*-validation.arrow", truncate, "is truncated"),
        ("shard-*-validation.arrow", mark, "has other content than was written"),
        ("vocab.txt", truncate, "has other content than was written"),
        ("vocab.txt", flip, "has other content than was written"),
        ("vocab.txt", Path.unlink, "is missing"),
    ],
)
@pytest.mark.parametrize("keep_steps", [False, True])
def test_damaged_store_is_refused_and_made_again(
    tmp_path: Path, pattern: str, harm: Callable[[Path], object], why: str, *, keep_steps: bool
) -> None:
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder = prepare(data, tmp_path / "store", keep_steps=keep_steps).folder
    before, lines = contents(folder), list[str]()
    (damaged,) = folder.glob(pattern)
    harm(damaged)
    with pytest.raises(DataError, match=f"the token store is damaged: {damaged}") as caught:
        TokenStore.open(folder)
    assert caught.value.facts == {"why": why}
    prepare(data, folder, say=lines.append, keep_steps=keep_steps)
    assert contents(folder) == before
    assert f"{damaged.name} {why}: the token store in {folder} is made again" in lines


def test_preparation_finds_damage_that_no_job_has_read(tmp_path: Path) -> None:
    """A kill between the last file of a store and the end of its run: a restart must not accept what changed since."""
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder = prepare(data, tmp_path / "store").folder
    before, lines = contents(folder), list[str]()
    (shard,) = folder.glob("shard-*-train.arrow")
    flip(shard)
    prepare(data, folder, say=lines.append, is_preparation=True)
    assert contents(folder) == before
    assert f"{shard.name} has other content than was written: the token store in {folder} is made again" in lines


def test_damage_is_for_next_start_if_other_nodes_found_the_store(tmp_path: Path) -> None:
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder = prepare(data, tmp_path / "store").folder
    before = contents(folder)
    (shard,) = folder.glob("shard-*-train.arrow")
    flip(shard)
    first = Node(rank=0, size=2, local_size=1)
    with pytest.raises(StorageError, match=f"the token store is damaged: {shard}") as caught:
        prepare(data, folder, node=first, is_preparation=True)
    assert caught.value.facts["store"] == "the next start makes it again from the text"
    assert contents(prepare(data, folder).folder) == before


@pytest.mark.parametrize(("old", "new"), [('"version"', "version"), ('"mask": 4', '"mask": 5')])
def test_store_with_damaged_manifest_is_not_taken_for_other_text(tmp_path: Path, old: str, new: str) -> None:
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder = prepare(data, tmp_path / "store").folder
    whole = contents(folder)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace(old, new))
    assert manifest.read_text() != text
    with pytest.raises(ConflictError, match="that cannot be read") as caught:
        prepare(data, folder)
    assert caught.value.facts == {"why": "manifest.json is damaged"}
    prepare(data, folder, replace=True)  # as for a folder that is named by its content
    assert contents(folder) == whole


def test_leftover_parts_of_complete_store_are_removed(tmp_path: Path) -> None:
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder = prepare(data, tmp_path / "store", keep_steps=True).folder
    prepare(data, folder, keep_steps=True)
    prepare(data, folder)  # a job that only uses the store
    assert (folder / "parts").is_dir()
    prepare(data, folder, is_preparation=True)
    assert not (folder / "parts").exists()


def test_steps_of_killed_process_are_removed(tmp_path: Path) -> None:
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder = prepare(data, tmp_path / "store", keep_steps=True).folder
    (tmp_path / ".store.lock").touch()
    prepare(data, folder)
    assert not (folder / "parts").exists()


def test_lock_of_killed_process_is_removed_unless_it_is_held(tmp_path: Path) -> None:
    data = TextConfig(text=sources(tmp_path, 1), vocab_size=200)
    folder, lock = prepare(data, tmp_path / "store").folder, tmp_path / ".store.lock"
    assert not lock.exists()
    with hold(lock):
        prepare(data, folder)
        assert lock.exists()
    assert lock.exists()
    prepare(data, folder)
    assert not lock.exists()


@pytest.mark.parametrize("why", ["empty", "unfit", "duplicates"])
def test_source_without_contribution_is_named(tmp_path: Path, why: str) -> None:
    text: list[Any] = sources(tmp_path, 1)
    poor = tmp_path / "poor.txt"
    poor.write_text({"empty": "\n \n", "unfit": "tiny\n\nsmall\n", "duplicates": documents_of(0)[3]}[why])
    data = TextConfig(text=[*text, poor], clean={"min_characters": 20}, vocab_size=200)
    with pytest.raises(DataError, match=r"the source poor\.txt contributes no document") as caught:
        prepare(data, tmp_path / "store")
    message = {"empty": "contain no document", "unfit": "data.clean drops", "duplicates": "in the text already"}[why]
    assert message in str(caught.value.facts["why"])


def test_unfit_vocabulary_is_reported_by_worker(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u0430"]))
    data = TextConfig(text=sources(tmp_path, 2), vocabulary=vocabulary, workers=2)
    with pytest.raises(DataError, match="does not fit the text") as caught:
        prepare(data, tmp_path / "store", min_worker_bytes=0)
    assert caught.value.facts["need"] == "at most 50% of the tokens [UNK]"


def test_worker_processes_give_identical_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = sources(tmp_path, 4)
    alone = prepare(TextConfig(text=text, vocab_size=200, workers=1), tmp_path / "alone")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *words, **options: started.append(popen(*words, **options)) or started[-1]
    )
    reports: list[tuple[int, dict[str, float]]] = []
    worker_counts: list[int] = []

    def report(step: int, figures: dict[str, float]) -> None:
        reports.append((step, dict(figures)))
        worker_counts.append(len(started))

    progress = PreparationProgress(lambda _: None, report)
    shared = prepare(
        TextConfig(text=text, vocab_size=200, workers=2), tmp_path / "shared", progress=progress, min_worker_bytes=0
    )
    assert contents(shared.folder) == contents(alone.folder)
    assert worker_counts == [2] * 8  # the same workers for both steps
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    assert [step for step, _ in reports] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert reports[3][1]["documents_documents"] == 120
    assert reports[3][1]["documents_bytes"] == shared.manifest.data.total_bytes
    assert reports[7][1]["tokens_documents"] == 120


def test_output_inside_text_folder_is_refused(tmp_path: Path) -> None:
    sources(tmp_path, 2)
    words = [sys.executable, "-m", "train_jobs.prepare", "--config", "uncased", "--set", f"data.text=[{tmp_path}]"]
    done = subprocess.run([*words, "--output", str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error[data]: the output is in the folder of the text, and would be read as text")
    assert "--output PATH outside of it" in done.stderr


def test_preparing_warns_of_unusual_sentences(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(f"a{number} " + "word of the text " * 200 for number in range(99)))
    arguments = ["--set", f"data.text=[{tmp_path / 'text.txt'}]", "--set", "data.vocab_size=100"]
    words = [sys.executable, "-m", "train_jobs.prepare", "--config", "uncased", *arguments]
    done = subprocess.run([*words, "--output", str(tmp_path / "out")], capture_output=True, text=True, check=True)
    assert "warning: a sentence has 2" in done.stdout
    assert "(usual: 5 to 80): most next-sentence pairs are random" in done.stdout


def test_repeated_start_reports_figures_once(tmp_path: Path) -> None:
    """A supervisor may be killed after the figures are reported: the next start must not report them again."""
    (text,) = sources(tmp_path, 1)
    arguments = ["--config", "uncased", "--set", f"data.text=[{text}]", "--set", "data.vocab_size=200"]
    words = [sys.executable, "-m", "train_jobs.prepare", *arguments, "--output", str(tmp_path / "out")]
    for _ in range(2):
        subprocess.run(words, capture_output=True, check=True)
    reports = [json.loads(line)["metrics"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert sum("dropped" in report for report in reports) == 1


def test_start_after_kill_reports_figures_at_same_step(tmp_path: Path) -> None:
    """A rank may be killed after the store is complete, before its figures are reported."""
    (text,) = sources(tmp_path, 1)
    arguments = ["--config", "uncased", "--set", f"data.text=[{text}]", "--set", "data.vocab_size=200"]
    words = [sys.executable, "-m", "train_jobs.prepare", *arguments, "--output", str(tmp_path / "out")]
    path, reports = tmp_path / "out" / "metrics.jsonl", []
    for _ in range(2):
        subprocess.run(words, capture_output=True, check=True)
        reports.append(json.loads(path.read_text().splitlines()[-1]))
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert [report["step"] for report in reports] == [2, 2]
    assert all("dropped" in report["metrics"] for report in reports)


def test_figures_after_restart_count_all_starts(tmp_path: Path) -> None:
    """The parts of an earlier start are in the store, so its time and its documents are in the figures."""
    texts = sources(tmp_path, 2)
    arguments = ["--config", "uncased", "--set", f"data.text={json.dumps(texts)}"]
    arguments += ["--set", "data.vocab_size=200", "--set", "keep_steps=true"]
    words = [sys.executable, "-m", "train_jobs.prepare", *arguments, "--output", str(tmp_path / "out")]
    subprocess.run(words, capture_output=True, check=True)
    path = tmp_path / "out" / "metrics.jsonl"
    reports = [json.loads(line) for line in path.read_text().splitlines()]
    (last,) = [report for report in reports if "dropped" in report["metrics"]]
    whole = {key: value for report in reports for key, value in report["metrics"].items()}
    # As if the first start had taken an hour, and had been killed before its last part was done.
    kept = [report for report in reports if report["step"] < last["step"]]
    kept[-1]["metrics"]["seconds"] = 3600.0
    path.write_text("".join(json.dumps(report) + "\n" for report in kept))
    (manifest,) = (tmp_path / "out" / "token-stores").rglob("manifest.json")
    manifest.unlink()
    max((manifest.parent / "parts").glob("tokens-*.json")).unlink()
    subprocess.run(words, capture_output=True, check=True)
    resumed: dict[str, float] = {}
    for line in path.read_text().splitlines():
        resumed |= json.loads(line)["metrics"]
    assert resumed["seconds"] > 3600
    assert resumed["mb_per_second"] == pytest.approx(resumed["bytes"] / 1e6 / resumed["seconds"], rel=0.01)
    for name in ("tokens_documents", "tokens_bytes", "documents_documents"):
        assert resumed[name] == whole[name], name
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["seconds"] == resumed["seconds"]
    assert "slowest_source" in result  # of both sources, although the last start read one of them


def test_preparing_does_not_import_pandas(tmp_path: Path) -> None:
    """pandas costs a third of a second per process if installed: pyarrow imports it to convert lists or arrays."""
    arguments = [
        *("--config", "uncased", "--set", f"data.text={json.dumps(sources(tmp_path, 2))}"),
        *("--set", "data.vocab_size=200", "--set", f"store={tmp_path / 'store'}", "--output", str(tmp_path / "out")),
    ]
    code = f"import sys; from train_jobs.prepare import main; print(main({arguments!r}), 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"


def test_killed_worker_raises_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give: Callable[..., None] = workers._Worker.give

    def send_then_kill(worker: Any, task: Any) -> None:
        give(worker, task)
        worker._process.kill()

    monkeypatch.setattr(workers._Worker, "give", send_then_kill)
    data = TextConfig(text=sources(tmp_path, 2), vocab_size=200, workers=2)
    with pytest.raises(workers.OutOfMemoryError, match="SIGKILL") as caught:
        prepare(data, tmp_path / "store", min_worker_bytes=0)
    assert "source-" in str(caught.value.facts["where"])
    monkeypatch.undo()
    prepare(data, tmp_path / "store", min_worker_bytes=0)
    shutil.rmtree(tmp_path / "store")


def test_record_is_valid_only_with_all_files(tmp_path: Path) -> None:
    (tmp_path / "data.arrow").write_bytes(b"12345")
    files = [describe_file(tmp_path / "data.arrow")]
    record = VocabularyRecord(key="k", seconds=0.0, pieces=5, rule=bert_rule(lowercase=True), files=files)
    write_record(tmp_path, "step", record)
    assert read_record(tmp_path, "step", VocabularyRecord, "k") == record
    assert read_record(tmp_path, "step", VocabularyRecord, "other") is None
    (tmp_path / "data.arrow").write_bytes(b"1234")  # on a mounted store, files may appear after their record
    assert read_record(tmp_path, "step", VocabularyRecord, "k") is None


def test_bit_flips_never_change_what_record_says(tmp_path: Path) -> None:
    record = VocabularyRecord(key="k", seconds=0.25, pieces=5, rule=bert_rule(lowercase=True))
    write_record(tmp_path, "step", record)
    path = tmp_path / "step.json"
    for content in flips_of_one_bit(path.read_bytes(), 400):
        path.write_bytes(content)
        assert read_record(tmp_path, "step", VocabularyRecord, "k") in (None, record), content
    path.write_text(record.model_dump_json())  # of an earlier version: without checksum
    assert read_record(tmp_path, "step", VocabularyRecord, "k") == record


def test_step_with_changed_count_in_record_is_repeated(tmp_path: Path) -> None:
    data = TextConfig(text=sources(tmp_path, 2), vocab_size=200)
    folder = prepare(data, tmp_path / "store", keep_steps=True).folder
    whole = contents(folder)
    (folder / "manifest.json").unlink()
    record = folder / "parts" / "tokens-00000.json"
    text = record.read_text()
    documents = json.loads(text)["splits"]["train"]["documents"]
    record.write_text(text.replace(f'"documents": {documents}', f'"documents": {documents - 10}'))
    assert record.read_text() != text
    prepare(data, folder)
    assert contents(folder) == whole


def test_part_written_in_batches_without_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = sources(tmp_path, 2)
    (tmp_path / "again.txt").write_text("\n\n".join([*documents_of(0)[::3], *documents_of(7), *documents_of(1)[::4]]))
    data = TextConfig(text=[*text, str(tmp_path / "again.txt")], vocab_size=200)
    whole = prepare(data, tmp_path / "whole")
    monkeypatch.setattr(extraction, "BATCH_CHARACTERS", 900)  # a few documents each
    cut = prepare(data, tmp_path / "cut")
    assert contents(cut.folder) == contents(whole.folder)
    assert cut.manifest.sources[2].documents == 30


def test_step_results_are_reused_only_for_same_inputs(tmp_path: Path) -> None:
    vocabulary = prepare(TextConfig(text=sources(tmp_path, 1), vocab_size=200), tmp_path / "first").vocabulary
    text, folder = sources(tmp_path, 2), tmp_path / "store"

    def assert_rebuilt(name: str, **rules: Any) -> None:
        data = TextConfig(text=text, vocabulary=vocabulary, clean=rules)
        prepare(data, folder, keep_steps=True)
        assert contents(folder) == contents(prepare(data, tmp_path / name).folder)

    assert_rebuilt("one")
    with Path(text[0]).open("a") as stream:  # a document of the other source, now a duplicate there
        stream.write("\n\n" + documents_of(1)[4])
    assert_rebuilt("two")
    assert_rebuilt("three", min_characters=440)


def test_source_weights_change_store_key(tmp_path: Path) -> None:
    def key(weight: float) -> str:
        data = TextConfig(text=[{"path": sources(tmp_path, 1), "weight": weight}])
        return store_key(data, fingerprint(data.text))

    assert len({key(1), key(2), key(0.5)}) == 3
