"""Plans refuse a text that the job would refuse as too small, and no text that the job accepts."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.specs.resolved import Flag
from tests.unit.corpus.small_corpora import prepare
from train_jobs.artifacts import text_documents
from train_jobs.config import DataError, TextConfig

WORDS = [f"{first}{second}word" for first, second in itertools.product("abcdefghijkl", repeat=2)]
TEXT = "\n\n".join(" ".join(WORDS[start : start + 36]) for start in range(0, 144, 36)) + "\n"
ONE_DOCUMENT = TEXT.replace("\n\n", "\n")
FEW = "The patient came and went home.\n\n" * 20 + "The patient stayed.\n"


def runs(letters: str, count: int = 140) -> str:
    """Return documents of distinct runs of letters, one of them after each blank line."""
    draw = random.Random(0)
    return "\n\n".join("".join(draw.choices(letters, k=8)) for _ in range(count)) + "\n"


def entities(text: str) -> str:
    """Return a text as entities of HTML, as wikiextractor may write it."""
    return "".join(character if character.isspace() else f"&#{ord(character)};" for character in text)


def json_lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


def letters(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


THAI, KANA, CYRILLIC = letters(0x0E01, 0x0E2E), letters(0x3041, 0x3090), letters(0x0430, 0x044F)
CHINESE = "\n\n".join(letters(first, first + 15) for first in range(0x4E00, 0x4F00, 16))
DNA = "".join(random.Random(1).choices("ACGT", k=20_000))
ARTICLES = "".join(
    f'<doc id="{number}" url="u" title="t">\nt\n\n{entities(text)}\n</doc>\n'
    for number, text in enumerate(runs(CYRILLIC).split("\n\n"))
)
Files = dict[str, str | bytes]


def packed(text: str) -> bytes:
    return gzip.compress(text.encode())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def starts(folder: Path) -> list[Callable[[Files, dict[str, Any]], object]]:
    """Return a plan and a job, each of files and of settings of the text."""

    def with_files(files: Files, settings: dict[str, Any]) -> dict[str, Any]:
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return {"text": list(files), "vocab_size": 500, **settings}

    def plan(files: Files, settings: dict[str, Any]) -> object:
        data = with_files(files, settings)
        flags = {f"data.{key}": Flag(value, "--set") for key, value in data.items()}
        flags["compute.device"] = Flag("cpu", "--set")
        resolved = resolve_spec("prepare", flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""})
        return make_plan(resolved, home=folder / "home")

    def job(files: Files, settings: dict[str, Any]) -> object:
        return prepare(TextConfig.model_validate(with_files(files, settings)), folder / "store")

    return [plan, job]


@pytest.mark.parametrize(
    ("files", "settings"),
    [
        pytest.param({"a.txt": TEXT}, {}, id="text"),
        pytest.param({"a.txt": runs(THAI)}, {}, id="Thai runs"),
        pytest.param({"a.txt": runs(KANA)}, {"lowercase": False}, id="kana runs"),
        pytest.param({"a.txt": CHINESE.encode("utf-16")}, {}, id="Chinese in UTF-16"),
        pytest.param({"a.txt": runs(CYRILLIC).encode("utf-16")}, {}, id="Russian in UTF-16"),
        pytest.param({"a.txt": DNA}, {"clean": {"max_characters": 100}}, id="a document that is cut"),
        pytest.param(
            {"a.txt.bz2": bz2.compress(ONE_DOCUMENT.encode()) + bytes(512) + bz2.compress(b"\nsecond document\n")},
            {},
            id="zeros between streams",
        ),
        pytest.param({"a.txt.zst": pa.compress(TEXT.encode(), codec="zstd", asbytes=True)}, {}, id="zstd"),
        pytest.param({"a.jsonl": json_lines(TEXT.replace("\n\n", "\u2028"), "b")}, {}, id="line separators in JSON"),
        pytest.param({"a.csv": "text\n" + TEXT.replace("\n\n", "\x85") + "b\n"}, {}, id="line separators in CSV"),
        pytest.param({"a.jsonl": json_lines(TEXT, "b").encode("utf-16")}, {}, id="JSON in UTF-16"),
        pytest.param({"a.txt": ONE_DOCUMENT, "b.jsonl": json_lines("b")}, {}, id="text and JSON"),
        pytest.param({"a.txt": ONE_DOCUMENT, "b.txt": "b\n"}, {}, id="two files"),
        pytest.param({"wiki_00": ARTICLES}, {}, id="entities of wikiextractor"),
        pytest.param(
            {"a.txt": ONE_DOCUMENT.replace("\n", "\r\r\n--\r\r\n")},
            {"text": [{"path": "a.txt", "document": "--$"}]},
            id="doubled carriage returns",
        ),
        pytest.param(
            {"a.txt": "".join(f"{word[::-1]} {word[::-1]}\n" for word in WORDS[:60])},
            {"text": [{"path": "a.txt", "document": ".."}]},
            id="a pattern that drops letters",
        ),
        pytest.param(
            {"a.txt": "\n\n".join("\u2260".join(WORDS[n : n + 3]) for n in range(0, 144, 3))}, {}, id="inequality"
        ),
    ],
)
def test_plan_accepts_text_that_the_job_accepts(
    starts: list[Callable[[Files, dict[str, Any]], object]], files: Files, settings: dict[str, Any]
) -> None:
    for start in starts:
        start(files, settings)


def test_plan_accepts_compressed_text_it_cannot_read_whole(
    starts: list[Callable[[Files, dict[str, Any]], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of few bytes may hold more text than a plan reads; the beginning of this one is a single document."""
    monkeypatch.setattr(text_documents, "COUNTED_BYTES", 10_000)
    for start in starts:
        start({"a.txt.gz": packed("a line of a document\n" * 1_000 + "\n" + TEXT)}, {})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": ONE_DOCUMENT}, "cannot split a single document"),
        ({"a.txt": ONE_DOCUMENT.encode("utf-16")}, "cannot split a single document"),
        ({"a.txt.gz": packed(ONE_DOCUMENT)}, "cannot split a single document"),
        ({"a.txt": FEW}, "the text is too small"),
        ({"a.txt": FEW, "b.txt.gz": packed(FEW.replace("home", "away"))}, "the text is too small"),
        ({"a.txt": FEW.encode("utf-16")}, "the text is too small"),
        ({"a.jsonl": json_lines(*FEW.split("\n\n"))}, "the text is too small"),
        ({"a.csv": "text\n" + FEW.replace("\n\n", "\n")}, "the text is too small"),
        ({"a.txt": runs(THAI, 60)}, "the text is too small"),
    ],
)
def test_plan_refuses_text_as_the_job_does(
    starts: list[Callable[[Files, dict[str, Any]], object]], files: Files, message: str
) -> None:
    refusals = []
    for start in starts:
        with pytest.raises(DataError, match=message) as caught:
            start(files, {})
        refusals.append((caught.value.facts["have"], caught.value.fix))
    assert refusals[0] == refusals[1]
