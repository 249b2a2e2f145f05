"""Corpora cut into parts: the documents of all parts, in order, equal those of the whole."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train_jobs.artifacts import text_files
from train_jobs.artifacts.fingerprints import embedded_files
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources import text_formats as text
from train_jobs.corpus.sources import text_parts
from train_jobs.corpus.sources.text_parts import Part, plan_parts, read_part

NASTY_LINES = ["a", "bc \u00a0", "\u6c34\U0001f600", "", "", " ", "\t \r", "\u2003", "</doc>x", "\x0b", "x" * 80, "\r"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Set the sizes of parts and search blocks to a few bytes."""
    monkeypatch.setattr(text_files, "MOST_PART_BYTES", 40)
    monkeypatch.setattr(text_parts, "_BLOCK", 16)
    return monkeypatch


def planned(path: Path, **options: object) -> tuple[list[SourceConfig], list[Part]]:
    sources = [SourceConfig(path=[str(path)], **options)]  # type: ignore[arg-type]
    return sources, plan_parts(sources)


def read(sources: list[SourceConfig], planned: list[Part]) -> list[str]:
    return [document for part in planned for document in read_part(sources, part)]


def text_file(draw: random.Random) -> str:
    return "".join(draw.choice(NASTY_LINES) + draw.choice(["\n", "\n", "\r\n"]) for _ in range(draw.randint(0, 60)))


def json_file(draw: random.Random) -> str:
    lines = [json.dumps({"text": text_file(draw)}, ensure_ascii=False) for _ in range(draw.randint(1, 12))]
    return draw.choice(["\n", "\r\n", "\n\n"]).join(lines)


def wiki_file(draw: random.Random) -> str:
    newline = draw.choice(["\n", "\r\n"])
    articles = [
        [
            '<doc id="1">',
            "Title",
            "",
            *draw.choices(NASTY_LINES, k=draw.randint(0, 8)),
            "</doc>",
            *[""][: draw.randint(0, 1)],
        ]
        for _ in range(draw.randint(1, 12))
    ]
    return newline.join(line.strip("\r") for article in articles for line in article) + newline


@pytest.mark.parametrize(("name", "make"), [("a.txt", text_file), ("a.jsonl", json_file), ("wiki_00", wiki_file)])
def test_documents_are_same_for_any_cut_of_file(
    tmp_path: Path, small: pytest.MonkeyPatch, name: str, make: object
) -> None:
    draw = random.Random(0)
    cut = 0
    for _ in range(60):
        content = make(draw).encode()  # type: ignore[operator]
        (tmp_path / name).write_bytes(draw.choice([b"", b"\xef\xbb\xbf"]) + content)
        small.setattr(text_files, "MOST_PART_BYTES", 1 << 20)
        small.setattr(text, "CHUNK", 1 << 20)
        sources, whole = planned(tmp_path / name, format={"wiki_00": "wikiextractor"}.get(name, "auto"))
        expected = read(sources, whole)
        assert len(whole) == 1
        for size in (1, 2, 3, 7, 40, 200):
            small.setattr(text_files, "MOST_PART_BYTES", size)
            small.setattr(text, "CHUNK", size)
            several = plan_parts(sources)
            assert read(sources, several) == expected
            assert sum(part.size for part in several) == len((tmp_path / name).read_bytes())
            cut += len(several) > 1
    assert cut > 100


def test_parts_are_deterministic_and_about_target_size(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("".join(f"document {n:03}\n\n" for n in range(100)))
    sources, several = planned(tmp_path)
    assert [part.size for part in several] == [14 * 3] * 33 + [14]
    assert several[1].name == "a.txt, bytes 42 to 84"
    assert (several[0].source, several[0].format) == (0, "text")
    assert plan_parts(sources) == several
    assert read(sources, several[1:2]) == ["document 003", "document 004", "document 005"]


def test_text_without_boundary_is_one_part(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("line\n" * 100)
    (tmp_path / "b.txt").write_text("line\n\n" * 100, encoding="utf-16")
    (tmp_path / "c.jsonl").write_text('{"text": "line"}\n' * 100, encoding="utf-16")
    (tmp_path / "d.txt").write_text("\u0a0a\u0a0a" * 100, encoding="utf-16")
    for name, documents in (("a.txt", 1), ("b.txt", 100), ("c.jsonl", 100), ("d.txt", 1)):
        sources, several = planned(tmp_path / name)
        assert [part.name for part in several] == [name]
        assert len(read(sources, several)) == documents


def test_boundary_between_search_blocks_is_found(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    small.setattr(text_files, "MOST_PART_BYTES", 4)
    for at in range(4, 30):
        (tmp_path / "a.txt").write_text("x" * at + "\n \n" + "y" * 20 + "\n")
        _, several = planned(tmp_path / "a.txt")
        assert [part.size for part in several] == [at + 3, 21]


def test_small_files_of_same_kind_share_part(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    for name, size in (("a", 15), ("b", 15), ("c", 15), ("d", 38), ("f", 5)):
        (tmp_path / f"{name}.txt").write_text("x" * size)
    (tmp_path / "e.jsonl").write_text('{"text": "e"}')
    sources, several = planned(tmp_path)
    assert [(part.name, part.size, len(part.pieces)) for part in several] == [
        ("a.txt and 1 more", 30, 2),
        ("c.txt", 15, 1),
        ("d.txt", 38, 1),
        ("e.jsonl", 13, 1),
        ("f.txt", 5, 1),
    ]
    assert [len(text) for text in read(sources, several)] == [15, 15, 15, 38, 1, 5]


def test_parquet_is_cut_between_row_groups(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    small.setattr(text_files, "MOST_PART_BYTES", 1000)
    texts = [f"{n:09}" for n in range(500)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=30, use_dictionary=False)
    pq.write_table(pa.table({"text": ["b"]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "c.parquet")
    sources, several = planned(tmp_path)
    assert several[0].name == "a.parquet, row groups 0 to 1"
    assert [part.name for part in several[-2:]] == ["a.parquet, row groups 16 to 16", "b.parquet and 1 more"]
    assert len(several) == 10
    assert read(sources, several) == [*texts, "b"]
    counts: list[int] = []
    assert list(read_part(sources, several[0], read=counts.append)) == texts[:60]
    assert sum(counts) == several[0].size


def test_sources_keep_order_and_settings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one", "text": "no"}')
    (tmp_path / "b.jsonl").write_text('{"text": "two"}')
    sources = [
        SourceConfig(path=[str(tmp_path / "a.jsonl")], column="body"),
        SourceConfig(path=[str(tmp_path / "b.jsonl")]),
    ]
    several = plan_parts(sources)
    assert [part.source for part in several] == [0, 1]
    assert read(sources, several) == ["one", "two"]


def test_missing_source_means_embedded_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    few = embedded_files()[:20]
    monkeypatch.setattr(text_parts, "embedded_files", lambda: few)
    [part] = plan_parts([])
    counts: list[int] = []
    texts = list(read_part([], part, read=counts.append))
    assert 5 < len(texts) <= 20
    assert sum(counts) == part.size


def test_parts_of_little_text_are_smaller() -> None:
    assert [text_files.part_bytes(megabytes << 20) for megabytes in (1, 100, 1024, 4096)] == [
        8 << 20,
        8 << 20,
        32 << 20,
        64 << 20,
    ]


def test_part_size_depends_on_total_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LEAST_PART_BYTES", 100)
    sources = []
    for number, documents in enumerate((10, 630)):
        path = tmp_path / f"{number}.txt"
        path.write_text("nine and\n\n" * documents)
        sources.append(SourceConfig(path=[str(path)]))
    planned = plan_parts(sources)  # 6,400 bytes
    assert [part.source for part in planned] == [0, *[1] * 30]
    assert {part.size for part in planned[1:-1]} == {210}
