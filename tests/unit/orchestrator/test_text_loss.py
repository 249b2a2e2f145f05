"""Rows and warnings of a plan about lost letters, measured on a sample of the text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.jobs.text_loss import loss_warnings, measured_text, words_rows
from orchestrator.specs.resolved import Flag
from tests.conftest import SMALL_TEXT, write_bert
from tests.unit.corpus.scripts_text import SENTENCES
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.artifacts.text_sample import SAMPLE_BYTES, measure_text, sample_source
from train_jobs.config import TextConfig
from train_jobs.config.prepare import SourceConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    for language, sentence in SENTENCES.items():
        (tmp_path / f"{language}.txt").write_text(f"{sentence}\n\n" * 200, encoding="utf-8")
    thai = SENTENCES["th"].replace(" ", "")
    (tmp_path / "th.txt").write_text(f"{thai * 5} {thai}\n\n" * 20, encoding="utf-8")
    (tmp_path / "words.txt").write_text(SMALL_TEXT)
    return tmp_path


def plan(folder: Path, kind: str, **values: Any):
    """Return the plan of a text, which has few words, and of a text of enough words."""
    if "data__text" in values:
        values["data__text"] = [*values["data__text"], "words.txt"]
    flags = {key.replace("__", "."): Flag(value, "--set") for key, value in values.items()}
    flags["compute.device"] = Flag("cpu", "--set")
    return make_plan(resolve_spec(kind, flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""}), home=folder / "home")


@pytest.mark.parametrize("kind", ["prepare", "pretrain"])
def test_plan_of_stripped_hindi_warns(folder: Path, kind: str) -> None:
    found = plan(folder, kind, data__text=["hi.txt"], data__strip_accents=True)
    (warning,) = [text for text in found.warnings if "hi.txt" in text]
    assert "stripping accents drops or takes apart 1" in warning
    assert "--set data.strip_accents=false keeps them" in warning
    kept = plan(folder, kind, data__text=["hi.txt"])
    assert not [text for text in kept.warnings if "hi.txt" in text]
    assert "lower case, accents kept (strip_accents and split_unspaced: auto)" in kept.summary()
    assert "hi.txt: 0.0% of the characters dropped, 0.0% of the words [UNK]" in " ".join(kept.summary().split())
    assert kept.as_dict()["text"]["rule"] == [True, False, False]


def test_plan_of_whole_thai_runs_warns(folder: Path) -> None:
    found = plan(folder, "prepare", data__text=["th.txt"], data__split_unspaced=False)
    (warning,) = [text for text in found.warnings if "th.txt" in text]
    assert "50.0% of the words" in warning
    assert warning.endswith("--set data.split_unspaced=true keeps scripts without blanks")
    assert not [text for text in plan(folder, "prepare", data__text=["th.txt"]).warnings if "th.txt" in text]


@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_plan_of_text_without_sentence_ends_warns(folder: Path, form: str) -> None:
    """Words of a log without full stops: a sentence would be cut after 256 words. Rows and blank lines end one."""
    words = "one two three four five six seven eight nine ten " * 12
    rows = [json.dumps({"text": words}) for _ in range(100)] if form == "jsonl" else [words] * 100
    separator = "\n" if form == "jsonl" else "\n\n"
    (folder / f"log.{form}").write_text(separator.join(rows))
    for kind in ("prepare", "pretrain"):
        (warning,) = [
            text for text in plan(folder, kind, data__text=[f"log.{form}"]).warnings if "sentence has" in text
        ]
        assert warning.startswith(f"log.{form}: a sentence has 12")
        assert "most next-sentence pairs will be random" in warning
    alone = plan(folder, "pretrain", data__text=[f"log.{form}"], objective__next_sentence=False)
    (folder / f"log.{form}").write_text(separator.join(rows).replace("ten ", "ten. "))
    ended = plan(folder, "pretrain", data__text=[f"log.{form}"])
    assert not [text for found in (alone, ended) for text in found.warnings if "sentence has" in text]


def test_plan_of_thai_does_not_warn_of_missing_ends(folder: Path) -> None:
    (folder / "long.txt").write_text(f"{SENTENCES['th']} " * 2_000, encoding="utf-8")
    assert not [text for text in plan(folder, "prepare", data__text=["long.txt"]).warnings if "sentence has" in text]


def test_plan_of_english_keeps_published_rule(folder: Path) -> None:
    (folder / "en.txt").write_text("The house by the sea was cold. " * 400)
    found = plan(folder, "pretrain", data__text=["en.txt"])
    assert found.text.rule == TextRule(lowercase=True, strip_accents=True)
    assert not [text for text in found.warnings if "en.txt" in text]
    assert plan(folder, "pretrain").text is None  # the embedded text is English


def test_plan_names_the_source_that_loses(folder: Path) -> None:
    """Little Hindi with much English: the rule is English, and the plan warns of the loss in Hindi."""
    (folder / "en.txt").write_text("The house by the sea was cold. " * 40_000)
    found = plan(folder, "prepare", data__text=["en.txt", "hi.txt"])
    assert found.text.rule.strip_accents
    assert [text.split(":")[0] for text in found.warnings if "keeps them" in text] == ["hi.txt"]


def test_initial_model_keeps_its_rule_and_plan_warns(folder: Path) -> None:
    write_bert(folder / "bert")
    found = plan(folder, "pretrain", data__text=["hi.txt"], init_from="bert")
    assert (found.job.data.strip_accents, found.job.data.split_unspaced) == (True, False)
    warnings = [text for text in found.warnings if text.startswith("hi.txt")]
    assert len(warnings) == 2
    assert all(text.endswith("start from a model of that language: --set init_from=MODEL") for text in warnings)
    assert "of the words" in warnings[1]


def test_given_vocabulary_is_measured(folder: Path) -> None:
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##a", "a", "b"]))
    (folder / "own.txt").write_text("the ab baa bab\n")
    data = TextConfig(text=["own.txt"], vocabulary=vocabulary)
    facts = measured_text(data)
    assert facts is not None
    assert facts.losses[0].unknown_words == 0.5  # ab and bab need ##b
    (warning,) = loss_warnings(data, facts)
    assert "data.vocabulary=null" in warning
    assert next(iter(words_rows(data, facts)))[1].startswith("lower case, accents stripped")


def test_sample_reads_every_format(folder: Path) -> None:
    hindi = SENTENCES["hi"]
    with gzip.open(folder / "packed.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write(f"{hindi}\n" * 10)
    rows = [json.dumps({"body": hindi}) for _ in range(10)] + ["torn"]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "wiki.xml").write_text(f"<mediawiki><page><text>{hindi} &amp;</text></page></mediawiki>")
    for name in ("packed.txt.gz", "rows.jsonl", "wiki.xml"):
        sample = sample_source(SourceConfig(path=[name], column="body"))
        assert hindi in sample.text, name
        assert "page" not in sample.text
    large = "".join(f"{number:07d} word\n" for number in range(SAMPLE_BYTES // 4))
    (folder / "large.txt").write_text(large + SENTENCES["th"], encoding="utf-8")
    sample = sample_source(SourceConfig(path=["large.txt"]))
    assert len(sample.text) <= SAMPLE_BYTES + 10
    assert sample == sample_source(SourceConfig(path=["large.txt"]))
    (folder / "table.parquet").write_bytes(b"PAR1")
    assert measure_text(TextConfig(text=["table.parquet", "hi.txt"])).unread == ["table.parquet"]
