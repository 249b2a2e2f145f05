"""Files of a source, their kinds, and the hash of their content."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from orchestrator.jobs import inputs
from train_jobs.artifacts import fingerprints
from train_jobs.artifacts.drafts import Owner
from train_jobs.artifacts.fingerprints import content_hashes, fingerprint, source_fingerprint
from train_jobs.artifacts.text_files import source_files
from train_jobs.config import DataError, TextConfig
from train_jobs.config.prepare import SourceConfig
from train_jobs.readers.text_check import check_text

DUMP = b'<mediawiki xml:lang="en">\n</mediawiki>\n'
ARTICLE = b'<doc id="1" url="u" title="T">\nT\n\nText.\n</doc>\n'
RECORD = b'{"text": "one"}\n'
HOUR = 3600 * 10**9  # nanoseconds: longer than any pause of a test


def put(path: Path, content: bytes = b"text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def found(*paths: Path | str, **options: object) -> list[tuple[str, str, str | None]]:
    source = SourceConfig(path=[str(path) for path in paths], **options)  # type: ignore[arg-type]
    return [(file.path.name, file.format, file.compression) for file in source_files(source)]


def test_folder_lists_known_files_sorted(tmp_path: Path) -> None:
    put(tmp_path / "b" / "notes.text")
    put(tmp_path / "a.txt.gz", gzip.compress(b"text\n"))
    put(tmp_path / "b.jsonl.xz", lzma.compress(RECORD))
    put(tmp_path / "c.xml.bz2", bz2.compress(DUMP))
    put(tmp_path / "d" / "AA" / "wiki_00", ARTICLE)
    put(tmp_path / "d" / "AA" / "wiki_01.bz2", bz2.compress(RECORD))
    put(tmp_path / "e.txt.zst", b"\x28\xb5\x2f\xfd rest")
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "f.parquet")
    for stranger in ("notes.md", ".hidden.txt", ".git/a.txt", "x.txt.part", "data.json", "wiki_00.log"):
        put(tmp_path / stranger)
    for beside in ("c-multistream-index.txt.bz2", "c-multistream-index1.txt", "enwiki-latest-sha1sums.txt"):
        put(tmp_path / beside)
    assert found(tmp_path) == [
        ("a.txt.gz", "text", "gzip"),
        ("notes.text", "text", None),
        ("b.jsonl.xz", "jsonl", "xz"),
        ("c.xml.bz2", "wikipedia", "bzip2"),
        ("wiki_00", "wikiextractor", None),
        ("wiki_01.bz2", "jsonl", "bzip2"),
        ("e.txt.zst", "text", "zstd"),
        ("f.parquet", "parquet", None),
    ]
    assert [name for name, *_ in found(tmp_path, format="jsonl")] == ["b.jsonl.xz", "wiki_00", "wiki_01.bz2"]
    assert [name for name, *_ in found(tmp_path, format="wikipedia")] == ["c.xml.bz2"]


def test_explicit_file_kind_is_detected_by_content(tmp_path: Path) -> None:
    assert found(put(tmp_path / "dump", DUMP)) == [("dump", "wikipedia", None)]
    assert found(put(tmp_path / "packed", bz2.compress(b"\n" + DUMP))) == [("packed", "wikipedia", "bzip2")]
    assert found(put(tmp_path / "a.txt", ARTICLE)) == [("a.txt", "wikiextractor", None)]
    assert found(put(tmp_path / "b.txt", ARTICLE.decode().encode("utf-16"))) == [("b.txt", "wikiextractor", None)]
    assert found(put(tmp_path / "c.txt", b"\xef\xbb\xbf" + ARTICLE)) == [("c.txt", "wikiextractor", None)]
    assert found(put(tmp_path / "records.json", RECORD)) == [("records.json", "jsonl", None)]
    assert found(put(tmp_path / "d.txt", RECORD)) == [("d.txt", "text", None)]
    assert found(put(tmp_path / "letter")) == [("letter", "text", None)]
    assert found(put(tmp_path / "e.txt", ARTICLE), format="text") == [("e.txt", "text", None)]
    with pytest.raises(DataError, match=r"list\.json is a JSON array"):
        found(put(tmp_path / "list.json", b'[\n{"text": "one"}]'))
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "table")
    assert found(tmp_path / "table") == [("table", "parquet", None)]


@pytest.mark.parametrize(
    "name", ["NOTES.TXT", "Notes.Text", "notes", "notes.log", "notes.md", "NOTES.TXT.gz", "N.TXT.GZ"]
)
@pytest.mark.parametrize(
    "line",
    [
        "{curly} notes begin so",
        '{ "a" started the list',
        '{"a", "b"} is a set',
        "BZhang wrote the notes",
        "BZh9 is a name",
        "PAR1 is a receptor",
        "GIF8 is a name",
        "ARROW1 is a boat",
    ],
)
def test_text_like_beginning_of_another_format_is_text(tmp_path: Path, name: str, line: str) -> None:
    content = f"{line}\nmore text\n".encode()
    path = put(tmp_path / name, gzip.compress(content) if name.lower().endswith(".gz") else content)
    assert [form for _, form, _ in found(path)] == ["text"]
    check_text([SourceConfig(path=[str(path)])])


@pytest.mark.parametrize(
    "beginning", ['{"text": "one"}', '{ "te\\"xt" : 1}', "{}", '{\n  "text": "one"\n}', '{"text": "one']
)
def test_json_of_unknown_name_is_jsonl(tmp_path: Path, beginning: str) -> None:
    """Damaged records are refused when they are read; they must not be learned as text."""
    assert found(put(tmp_path / "records.log", beginning.encode())) == [("records.log", "jsonl", None)]


def test_names_in_capitals_have_the_same_formats(tmp_path: Path) -> None:
    put(tmp_path / "A.TXT.GZ", gzip.compress(b"text\n"))
    put(tmp_path / "B.JSONL", RECORD)
    put(tmp_path / "C.XML.BZ2", bz2.compress(DUMP))
    put(tmp_path / "D.BZ2", bz2.compress(b""))
    assert found(tmp_path) == [
        ("A.TXT.GZ", "text", "gzip"),
        ("B.JSONL", "jsonl", None),
        ("C.XML.BZ2", "wikipedia", "bzip2"),
    ]
    assert found(tmp_path / "D.BZ2") == [("D.BZ2", "text", "bzip2")]


def test_folder_reads_links_to_folders_once(tmp_path: Path) -> None:
    put(tmp_path / "corpus" / "a.txt")
    put(tmp_path / "corpus" / "z" / "b.txt")
    put(tmp_path / "elsewhere" / "deep" / "c.txt")
    put(tmp_path / "corpus" / ".store" / "d.txt")
    links = {
        "books": "../elsewhere",
        "more": "../elsewhere/deep",
        "a_z": "z",
        "loop": ".",
        "up": "..",
        "now": ".store",
        "x": "gone",
    }
    for name, target in links.items():
        (tmp_path / "corpus" / name).symlink_to(target)
    (tmp_path / "elsewhere" / "back").symlink_to("../corpus")
    source = SourceConfig(path=[str(tmp_path / "corpus")])
    listed = [str(Path(str(file.path)).relative_to(tmp_path / "corpus")) for file in source_files(source)]
    assert listed == ["a.txt", "books/deep/c.txt", "now/d.txt", "z/b.txt"]
    put(tmp_path / "elsewhere" / "notes.md")
    assert check_text([source]).text().endswith("2 other files not read: notes.md, x"), "x: a disk that is not mounted"


def test_link_to_no_file_is_an_error_if_its_name_is_that_of_text(tmp_path: Path) -> None:
    put(tmp_path / "a.txt")
    (tmp_path / "b.txt").symlink_to("/mnt/archive/b.txt")
    why = f"cannot read {tmp_path / 'b.txt'}: it is a link to /mnt/archive/b.txt, which does not exist"
    with pytest.raises(DataError, match=re.escape(why)):
        found(tmp_path)
    assert found(tmp_path / "a.txt") == [("a.txt", "text", None)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read as another user")
def test_closed_subfolder_is_an_error_with_its_fix() -> None:
    with tempfile.TemporaryDirectory() as name:  # only its owner may read tmp_path
        folder = Path(name)
        folder.chmod(0o755)
        put(folder / "a.txt").chmod(0o644)
        closed = put(folder / "closed" / "b.txt").parent
        put(folder / "lost+found" / "c.txt").parent.chmod(0o700)
        source, other = SourceConfig(path=[name]), SourceConfig(path=[str(folder / "missing.txt")])
        for mode, right, place in ((0o700, "rx", closed), (0o744, "x", closed / "b.txt")):
            closed.chmod(mode)
            os.seteuid(65_534)
            try:
                with pytest.raises(DataError, match=f"cannot read {place}: permission denied") as caught:
                    check_text([source])
                with pytest.raises(DataError, match="cannot use the text: 2 problems"):
                    check_text([source, other])
            finally:
                os.seteuid(0)
            assert caught.value.fix == f"ask root for access, or: sudo chmod o+{right} {closed}"


def test_globs_are_sorted_without_duplicates(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c/d.txt", "c/e.md"):
        put(tmp_path / name)
    put(tmp_path / "a-multistream-index.txt")
    assert [name for name, *_ in found(f"{tmp_path}/*.txt")] == ["a.txt", "b.txt"]
    assert [name for name, *_ in found(f"{tmp_path}/*.txt", tmp_path / "b.txt", tmp_path)] == [
        "a.txt",
        "b.txt",
        "d.txt",
    ]
    assert [name for name, *_ in found(f"{tmp_path}/**/*.md")] == ["e.md"]
    assert [name for name, *_ in found(f"{tmp_path}/c*")] == ["d.txt"]
    odd = put(tmp_path / "[draft].txt")
    assert found(odd) == [("[draft].txt", "text", None)]


def test_source_without_files_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file or folder: .*missing\.txt"):
        found(tmp_path / "missing.txt")
    with pytest.raises(DataError, match=r"no file matches .*\*\.xml"):
        found(f"{tmp_path}/*.xml")
    put(tmp_path / "notes.md")
    with pytest.raises(DataError, match="no text in folder"):
        found(tmp_path)
    put(tmp_path / "a.txt")
    with pytest.raises(DataError, match="no text in folder") as caught:
        found(tmp_path, format="parquet")
    assert str(caught.value.facts["need"]).startswith("parquet")


def test_web_page_is_refused(tmp_path: Path) -> None:
    page = b"<!DOCTYPE html>\n<html><body>403 Forbidden</body></html>"
    with pytest.raises(DataError, match=r"enwiki\.xml\.bz2 is not bzip2") as caught:
        found(put(tmp_path / "enwiki.xml.bz2", page))
    assert caught.value.facts == {"where": "byte 0", "have": "a web page"}
    with pytest.raises(DataError, match="is not gzip") as caught:
        found(put(tmp_path / "empty.txt.gz", b""))
    assert caught.value.facts["have"] == "an empty file"
    with pytest.raises(DataError, match="is a web page"):
        found(put(tmp_path / "books.txt", b"  <HTML lang=en>"))
    assert found(tmp_path / "books.txt", format="text") == [("books.txt", "text", None)]


def test_source_is_either_files_or_dataset() -> None:
    assert SourceConfig.model_validate("notes").path == ["notes"]
    assert SourceConfig.model_validate({"path": "notes"}).title == "notes"
    assert SourceConfig(path=["/data/a.txt", "b/*.xml"]).title == "a.txt, *.xml"
    assert SourceConfig(path=["a"], name="books").title == "books"
    assert SourceConfig(dataset="a", format="dataset").dataset == "a"
    for wrong in ({"path": ["a"], "format": "dataset"}, {"dataset": "a", "format": "text"}):
        with pytest.raises(ValidationError, match="is not valid for a"):
            SourceConfig.model_validate(wrong)
    for wrong in ({}, {"path": ["a"], "dataset": "b"}):
        with pytest.raises(ValidationError, match="exactly one of `path` and `dataset`"):
            SourceConfig.model_validate(wrong)


@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        ("owner/books", ("owner/books", None, "train")),
        ("owner/books:en@validation", ("owner/books", "en", "validation")),
        ("books@test", ("books", None, "test")),
    ],
)
def test_dataset_name_is_parsed(dataset: str, parts: tuple[str, str | None, str]) -> None:
    source = SourceConfig(dataset=dataset)
    assert (source.dataset_parts(), source.title) == (parts, dataset)


def test_names_that_are_not_utf8_are_hashed(tmp_path: Path) -> None:
    put(tmp_path / "caf\udce9.txt")
    source = SourceConfig(path=[str(tmp_path)])
    assert len(source_fingerprint(source).sha256) == 64
    assert check_text([source]).text() == "all of 1 file"


def test_relative_and_absolute_paths_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b/c.txt", "b/d/e.txt"):
        put(tmp_path / name)
    monkeypatch.chdir(tmp_path / "b")
    whole = SourceConfig(path=[str(tmp_path / name) for name in ("a.txt", "b/c.txt", "b/d/e.txt")])
    mixed = SourceConfig(path=["../a.txt", str(tmp_path / "b" / "c.txt"), "d/e.txt"])
    assert source_fingerprint(mixed).sha256 == source_fingerprint(whole).sha256


def test_source_hash_depends_on_content_and_options(tmp_path: Path) -> None:
    for place in ("here", "there"):
        put(tmp_path / place / "a.jsonl", RECORD)
        put(tmp_path / place / "sub" / "b.txt")

    def digest(place: str = "here", **options: object) -> str:
        return source_fingerprint(SourceConfig(path=[str(tmp_path / place)], **options)).sha256  # type: ignore[arg-type]

    same = fingerprint([SourceConfig(path=[str(tmp_path / "here")])])
    assert digest("here") == digest("there") == digest("here", weight=3, name="n") == same.sha256
    assert (same.files, same.total_bytes) == (2, len(RECORD) + 5)
    assert len({digest(), digest(column="body"), digest(format="text")}) == 3
    put(tmp_path / "here" / "sub" / "b.txt", b"other\n")
    assert digest("here") != digest("there")


def test_folder_without_text_has_the_glob_that_reads_it(tmp_path: Path) -> None:
    put(tmp_path / "one" / "notes.md")
    put(tmp_path / "one" / "page.html", b"<html>")
    put(tmp_path / "[two]" / "1")
    put(tmp_path / "three" / "scan.png", b"\x89PNG")
    put(tmp_path / "four" / "data.log", b"\0\1")
    put(tmp_path / "five" / "1")
    put(tmp_path / "five" / "scan.png", b"\x89PNG")
    (tmp_path / "six").mkdir()
    (tmp_path / "six" / "gone.md").symlink_to("/proc/self/mem")  # cannot be read
    for folder, files in (("one", "one/**/*.md"), ("[two]", "[[]two]/**/*")):
        with pytest.raises(DataError, match="no text in folder") as caught:
            found(tmp_path / folder)
        assert caught.value.fix == f"--data '{tmp_path}/{files}'"
        assert len(found(f"{tmp_path}/{files}")) == 1
    for folder in ("three", "four", "five", "six"):
        with pytest.raises(DataError, match="no text in folder") as caught:
            found(tmp_path / folder)
        assert caught.value.fix == "--data FILE"


def test_skipped_files_of_a_folder_are_told(tmp_path: Path) -> None:
    put(tmp_path / "OLD.TXT")
    source = SourceConfig(path=[str(tmp_path)])
    assert (check_text([source]).text(), [*check_text([source]).warnings()]) == ("all of 1 file", [])
    put(tmp_path / "a.md")
    put(tmp_path / "dump-multistream-index.txt")
    seen = check_text([source])
    assert seen.text() == f"all of 1 file; in {tmp_path} 1 other file not read: a.md"
    assert [*seen.warnings()] == []
    put(tmp_path / "below" / "b.md")
    told = f"2 of 3 files in {tmp_path} are not read: a.md, b.md; to read more: --data '{tmp_path}/**/*.md'"
    assert [*check_text([source]).warnings()] == [told]
    both = SourceConfig(path=[str(tmp_path), f"{tmp_path}/**/*.md"])
    assert check_text([both]).text() == "all of 3 files"
    assert check_text([source, SourceConfig(path=[f"{tmp_path}/**/*.md"])]).text() == "all of 3 files"


@pytest.mark.parametrize(
    "damage",
    [
        lambda cache: cache[: len(cache) // 2],
        lambda _: b"",
        lambda _: b"\x00" * 100,
        lambda _: b"\xff\xfe{",
        lambda _: b"[" * 100_000,
        lambda _: b"[1]",
        lambda cache: json.dumps(dict.fromkeys(json.loads(cache), 5)).encode(),
        lambda cache: json.dumps({key: found[:-1] for key, found in json.loads(cache).items()}).encode(),
    ],
)
def test_damaged_cache_of_hashes_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(fingerprints, "RECENT", -HOUR)
    text = [SourceConfig(path=[str(put(tmp_path / "text" / "a.txt"))])]
    cache = tmp_path / "hashes.json"
    expected, whole = fingerprint(text, cache), cache.read_bytes()
    cache.write_bytes(damage(whole))
    assert fingerprint(text, cache) == expected
    assert cache.read_bytes() == whole


def test_killed_writer_of_the_cache_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "RECENT", -HOUR)
    text, cache = tmp_path / "text.txt", tmp_path / "cache" / "fingerprints.json"
    text.write_text("a text")
    cache.parent.mkdir()
    (cache.parent / f".fingerprints.json.0.{Owner.current()._replace(started=1)}.tmp").write_text("{")
    (expected,) = content_hashes([text])
    assert content_hashes([text], cache) == [expected]
    assert [path.name for path in cache.parent.iterdir()] == ["fingerprints.json"]


def test_other_content_of_same_size_and_mtime_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that is unpacked again restores the time of a file, and rsync and `cp -p` do too."""
    monkeypatch.setattr(fingerprints, "RECENT", -HOUR)
    table, cache = put(tmp_path / "train.csv", b"good,1\nbad,0\n"), tmp_path / "hashes.json"
    os.utime(table, ns=(1, 1))
    before, ctime = content_hashes([table], cache), table.stat().st_ctime_ns
    while table.stat().st_ctime_ns == ctime:  # the clock of a file system has steps of some milliseconds
        put(table, b"good,0\nbad,1\n")
        os.utime(table, ns=(1, 1))
    assert content_hashes([table], cache) == content_hashes([table]) != before
    assert len(json.loads(cache.read_text())) == 1, "the entry of the earlier content is replaced"


@pytest.mark.parametrize(("recent", "entries"), [(HOUR, 0), (-HOUR, 1)])
def test_hash_of_file_that_just_changed_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, entries: int
) -> None:
    """A second change in the same step of the clock leaves size and times as they are."""
    monkeypatch.setattr(fingerprints, "RECENT", recent)
    cache = put(tmp_path / "hashes.json", b"{}")
    content_hashes([put(tmp_path / "train.csv", b"good,1\n")], cache)
    assert len(json.loads(cache.read_text())) == entries


def test_sources_read_and_write_the_cache_of_hashes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(50)]
    for path in paths:
        path.write_text(f"{path.stem}\n")
    sources, calls = [SourceConfig(path=[str(path)]) for path in paths], list[str]()

    def counted(module: ModuleType, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: (calls.append(name), function(*given))[1])

    monkeypatch.setattr(fingerprints, "RECENT", 0)
    for module, name in ((fingerprints, "read_object"), (fingerprints, "write_text"), (inputs, "_text_root")):
        counted(module, name)
    found = fingerprint(sources, tmp_path / "hashes.json")
    inputs.text_needs(TextConfig(text=sources), found, None)
    assert calls == ["read_object", "write_text", "_text_root"], "or thousands of sources take minutes"
    assert found.files == 50
    assert found.sha256 != fingerprint(sources[::-1]).sha256
