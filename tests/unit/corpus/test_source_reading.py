"""Documents from files of every kind, read whole or in parts."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from train_jobs.config import DataError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def put(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def documents(*paths: Path, **options: object) -> list[str]:
    sources = [SourceConfig(path=[str(path) for path in paths], **options)]  # type: ignore[arg-type]
    parts = pickle.loads(pickle.dumps(plan_parts(sources)))
    found = []
    for part in parts:
        counts: list[int] = []
        found += list(read_part(sources, part, read=counts.append))
        assert sum(counts) == part.size
    return found


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_text_is_read_in_all_encodings_and_compressions(
    tmp_path: Path, packed: str, encoding: str, newline: str
) -> None:
    expected = ["na\u00efve\nline", "\u6c34 \U0001f600", "end"]
    text = newline.join(["", expected[0].replace("\n", newline), " ", expected[1], "", "", expected[2]])
    mark = "\ufeff" if encoding.endswith("e") and "16" in encoding else ""
    path = put(tmp_path / f"a.txt{packed}", PACKERS[packed]((mark + text).encode(encoding)))
    assert documents(path) == expected


@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz", ".zst"])
def test_concatenated_streams_are_one_file(tmp_path: Path, packed: str) -> None:
    pack = PACKERS[packed]
    content = pack(b"one\n\ntw") + pack(b"") + pack(b"o\n") + pack(b"more" * 1_000_000)
    assert documents(put(tmp_path / f"a.txt{packed}", content)) == ["one", "two\n" + "more" * 1_000_000]


@pytest.mark.parametrize("packed", [".gz", ".xz"])
def test_padding_between_streams_is_skipped(tmp_path: Path, packed: str) -> None:
    content = PACKERS[packed](b"one ") + b"\0" * 8 + PACKERS[packed](b"two") + b"\0" * (1 << 19)
    assert documents(put(tmp_path / f"a.txt{packed}", content)) == ["one two"]


@pytest.mark.parametrize(
    ("packed", "damage"),
    [
        (packed, damage)
        for packed in PACKERS
        for damage in ("cut", "second stream cut", "garbage behind", "flipped")
        if packed and (packed, damage) != (".zst", "flipped")  # Arrow writes zstd without checksums
    ],
)
def test_damaged_compressed_files_are_named(tmp_path: Path, packed: str, damage: str) -> None:
    whole = PACKERS[packed](random.Random(0).randbytes(5000).hex().encode())
    content = {
        "cut": whole[:-20],
        "second stream cut": whole + whole[:50],
        "garbage behind": whole + b"<html>error</html>",
        "flipped": whole[:1000] + bytes([whole[1000] ^ 0xFF]) + whole[1001:],
    }[damage]
    with pytest.raises(DataError, match=rf"a\.txt\{packed} is damaged") as caught:
        documents(put(tmp_path / f"a.txt{packed}", content))
    assert str(caught.value.facts["where"]).startswith("before byte ")
    assert caught.value.fix is not None
    assert f" -t {tmp_path}" in caught.value.fix


def test_broken_utf16_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not valid UTF-16"):
        documents(put(tmp_path / "a.txt", "fine".encode("utf-16") + b"\x00\xd8"))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_fix_command_quotes_any_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "Anna's notes; $HOME & more"
    folder.mkdir()
    content = b"caf\xe9 au lait\n"
    path = put(folder / name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match="is not UTF-8") as caught:
        documents(path)
    subprocess.run(["sh", "-c", str(caught.value.fix)], check=True)
    assert documents(folder / "a.utf8.txt") == ["caf\u00e9 au lait"]


def test_invalid_utf8_in_compressed_file_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt.gz", gzip.compress(b"one\n\ncaf\xe9\n"))
    with pytest.raises(DataError, match="is not UTF-8") as caught:
        documents(path)
    assert caught.value.facts["where"] == "byte 8, line 3"
    assert caught.value.fix == f"gzip -dc {path} | iconv -f latin1 -t utf-8 > {tmp_path / 'a.utf8.txt'}"


def test_file_deleted_after_planning_is_named(tmp_path: Path) -> None:
    source = SourceConfig(path=[str(put(tmp_path / "a.txt", "one"))])
    [part] = plan_parts([source])
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: no such file"):
        list(read_part([source], part))


@pytest.mark.parametrize("packed", PACKERS)
def test_json_lines_are_read(tmp_path: Path, packed: str) -> None:
    records = [{"body": "one\n\nstill one \u6c34", "text": "x"}, {"body": None}, {"body": "two", "meta": {"id": 1}}]
    content = "\r\n".join(json.dumps(record) for record in records) + "\n\n"
    path = put(tmp_path / f"a.jsonl{packed}", PACKERS[packed](content.encode()))
    assert documents(path, column="body") == ["one\n\nstill one \u6c34", "two"]


def test_json_lines_in_utf16_are_read(tmp_path: Path) -> None:
    assert documents(put(tmp_path / "a.jsonl", '{"text": "na\u00efve"}\n{"text": "b"}'.encode("utf-16"))) == [
        "na\u00efve",
        "b",
    ]


@pytest.mark.parametrize(
    ("line", "message", "fact", "shown"),
    [
        (b'{"text": "cut o', "a line that is not JSON", "have", "a text of 15 characters"),
        (b"[1, 2]", "a line is not an object", "have", "a text of 6 characters"),
        (b'{"txt": 1, "id": 2}', "no field 'text'", "have", "txt, id"),
        (b'{"text": ["a"]}', "'text' of a line is not text", "have", "list"),
        (b'{"text": "caf\xe9"}', "is not UTF-8", "where", "byte 34, line 3"),
    ],
)
def test_invalid_json_lines_are_shown_with_position(
    tmp_path: Path, line: bytes, message: str, fact: str, shown: str
) -> None:
    path = put(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        documents(path)
    assert caught.value.facts[fact] == shown
    assert str(caught.value.facts["where"]).endswith("line 3")


def test_parquet_is_read(tmp_path: Path) -> None:
    table = pa.table({"id": range(300), "text": [f"text {n}" if n % 7 else None for n in range(300)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    for number, kind in enumerate((pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))):
        pq.write_table(pa.table({"text": pa.array(["b"]).cast(kind)}), tmp_path / f"b{number}.parquet")
    found = documents_without_sizes(tmp_path)
    assert found == [f"text {n}" for n in range(300) if n % 7] + ["b"] * 3


def documents_without_sizes(path: Path, **options: object) -> list[str]:
    sources = [SourceConfig(path=[str(path)], **options)]  # type: ignore[arg-type]
    return [text for part in plan_parts(sources) for text in read_part(sources, part)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PAR1 no more", "not a Parquet file, or is damaged"),
        (b"", "not a Parquet file"),
        (b"<html>", "not a Parquet file"),
    ],
)
def test_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        documents(put(tmp_path / "a.parquet", content))


def test_parquet_without_text_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column 'text'") as caught:
        documents(tmp_path / "a.parquet")
    assert caught.value.facts["have"] == "id, body"
    with pytest.raises(DataError, match="is not text") as caught:
        documents(tmp_path / "a.parquet", column="id")
    assert str(caught.value.facts["have"]) == "int64"


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [random.Random(0).randbytes(5000).hex()]}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[60:2000] = b"\xff" * 1940
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file, or is damaged"):
        documents(path)


def test_wikiextractor_output_is_read(tmp_path: Path) -> None:
    content = (
        '<doc id="1" url="u" title="A &amp; B">\nA &amp; B\n\nFish &amp; chips, 1 &lt; 2, AT&T &copy\nMore.\n\n</doc>\n'
        '<doc id="2" url="u" title="Only">\nOnly\n\n\n</doc>\n\n'
        '<doc id="3" url="u" title="Last">\nLast\n\nPara.\n\nPara.\n\n</doc>'
    )
    expected = ["Fish & chips, 1 < 2, AT&T &copy\nMore.", "Para.\n\nPara."]
    assert documents(put(tmp_path / "wiki_00", content)) == expected
    assert documents(put(tmp_path / "wiki_01.bz2", bz2.compress(content.replace("\n", "\r\n").encode()))) == expected


def test_wikiextractor_json_is_read_without_titles(tmp_path: Path) -> None:
    url = "https://en.wikipedia.org/wiki?curid="
    articles = [
        {"id": "1", "url": url + "1", "title": "A & B", "text": "A &amp; B\n\nFish &amp; chips.\nMore.\n"},
        {"id": "2", "url": url + "2", "title": "Only", "text": "Only\n"},
        {"id": "3", "revid": "7", "url": url + "3", "title": "Of version 3", "text": "No title here."},
        {"id": "4", "url": url + "4", "title": "Empty", "text": ""},
    ]
    content = "".join(json.dumps(article) + "\n" for article in articles)
    for name in ("wiki_00", "a.jsonl"):
        assert documents(put(tmp_path / name, content)) == ["Fish & chips.\nMore.", "No title here."]
    assert documents(tmp_path / "wiki_00", format="wikiextractor") == ["Fish & chips.\nMore.", "No title here."]
    own = {"url": "https://x.org", "title": "T", "text": "T\nBody.", "id": 1}
    assert documents(put(tmp_path / "own.jsonl", json.dumps(own))) == ["T\nBody."]


@pytest.mark.parametrize(
    ("content", "message", "line"),
    [
        ('\n<doc id="1">\nT\n\nText.\n', "an article has no end", 2),
        ('<doc id="1">\nT\n</doc>\nstray\n', "text outside of an article", 4),
    ],
)
def test_malformed_wikiextractor_output_is_named(tmp_path: Path, content: str, message: str, line: int) -> None:
    with pytest.raises(DataError, match=message) as caught:
        documents(put(tmp_path / "wiki_00", content))
    assert str(caught.value.facts["where"]).endswith(f"line {line}")


def test_wikiextractor_article_with_invalid_utf8_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not UTF-8") as caught:
        documents(put(tmp_path / "wiki_00", b'<doc id="1">\nT\n</doc>\n<doc id="2">\nT\ncaf\xe9\n</doc>\n'))
    assert caught.value.facts["where"] == "byte 40, line 6"
