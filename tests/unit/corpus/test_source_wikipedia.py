"""Articles from MediaWiki XML dumps."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
import pytest

from tests.conftest import SHARED
from train_jobs.artifacts import text_files
from train_jobs.config import DataError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import Part, plan_parts, read_part

REAL = SHARED / "data" / "wiki_xml"
HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
FOOTER = "</mediawiki>\n"


def page(
    title: str, text: str | None = None, *, ns: int | None = 0, redirect: bool = False, more: str = "", tag: str = ""
) -> str:
    body = tag or ("" if text is None else f'<text bytes="1" xml:space="preserve">{escape(text)}</text>')
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n"
        + (f"    <ns>{ns}</ns>\n" if ns is not None else "")
        + ('    <redirect title="X" />\n' if redirect else "")
        + f"    <revision><contributor><username>U</username></contributor>{more}\n      {body}</revision>\n  </page>\n"
    )


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def articles(path: Path) -> list[str]:
    sources = [SourceConfig(path=[str(path)])]
    planned = plan_parts(sources)
    found = [text for part in planned for text in read_part(sources, part)]
    assert sum(part.size for part in planned) == path.stat().st_size
    return found


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("", bytes), (".bz2", bz2.compress), (".xz", lzma.compress), (".gz", gzip.compress), (".zst", zstd)],
)
def test_articles_of_any_language_and_compression(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    dump = (
        HEADER
        + page("Eins", "'''Eins''' & <b>ist</b>[[Datei:a|x]] eine Zahl.[[Kategorie:Z]]")
        + page("Talk", "no", ns=1)
        + page("R", "#WEITERLEITUNG [[Eins]]", redirect=True)
        + page("R", "#REDIRECT [[Eins]] {{x}}")
        + page("R", "Says the element.", redirect=True)
        + page("Liste", "* nur\n* Liste")
        + page("Old", "Alt.", ns=None)
        + page("Data", '{"a": 1}', more="<model>wikibase-item</model>")
        + page("Zwei", "Zw\u00f6lf\n\n== H ==\nmal.", more="<model>wikitext</model>")
        + FOOTER
    )
    path = put(tmp_path / f"dewiki.xml{suffix}", pack(dump.encode()))
    assert articles(path) == ["Eins & ist eine Zahl.", "Alt.", "Zw\u00f6lf\nmal."]


def test_dump_in_utf16_with_declaration_is_read(tmp_path: Path) -> None:
    dump = '<?xml version="1.0" encoding="utf-16"?>\n' + HEADER + page("A", "Na\u00efv.") + FOOTER
    assert articles(put(tmp_path / "a.xml", dump.encode("utf-16"))) == ["Na\u00efv."]


def test_pages_with_deleted_text_are_skipped(tmp_path: Path) -> None:
    tags = (
        '<text bytes="9" deleted="deleted" />',
        '<text bytes="0" xml:space="preserve" />',
        '<text xml:space="preserve" />',
    )
    dump = HEADER + "".join(page("A", tag=tag) for tag in tags) + page("B", "B.") + FOOTER
    assert articles(put(tmp_path / "a.xml", dump)) == ["B."]


@pytest.mark.parametrize("tag", ["", '<text id="1" bytes="532" sha1="x" />'])
def test_page_with_missing_text_is_named(tmp_path: Path, tag: str) -> None:
    path = put(tmp_path / "stub.xml", HEADER + page("A", "A.") + page("B & C", tag=tag) + FOOTER)
    with pytest.raises(DataError, match=r"stub\.xml: a page has no text") as caught:
        articles(path)
    assert caught.value.facts["where"] == "line 22, page 2"


@pytest.mark.parametrize(
    ("content", "message", "where"),
    [
        (HEADER + page("A", "A.") + "  <page><title>B</title", "is truncated", "line 17, page 2"),
        (HEADER + page("A", "A."), "is truncated", "line 17, page 1"),
        (HEADER + page("A", "A.") + "<page><title>B</ttle>", "is not well-formed XML", "line 17, page 2"),
        (HEADER + "<page><title>\x00", "is not well-formed XML", "line 11, page 1"),
        ("<html><body>Not found</body></html>", "is not a MediaWiki dump", "line 1"),
        ("", "contains no dump", "line 1"),
        ("Service Unavailable", "is not well-formed XML", "line 1"),
    ],
)
def test_malformed_dump_is_named_with_position(tmp_path: Path, content: str, message: str, where: str) -> None:
    with pytest.raises(DataError, match=rf"dump\.xml {message}") as caught:
        articles(put(tmp_path / "dump.xml", content))
    assert caught.value.facts["where"] == where
    assert caught.value.fix


def test_truncated_compressed_dump_is_named(tmp_path: Path) -> None:
    packed = bz2.compress((HEADER + page("A", "A.") + FOOTER).encode())
    with pytest.raises(DataError, match=r"a\.xml\.bz2 is damaged: truncated"):
        articles(put(tmp_path / "a.xml.bz2", packed[:-30]))
    with pytest.raises(DataError, match=r"b\.xml\.bz2 is not bzip2"):
        articles(put(tmp_path / "b.xml.bz2", "<html>403</html>"))


def test_articles_are_same_for_any_cut_of_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [page(f"P{n}", f"Text {n} [[Datei:a|x]]." if n % 3 else "#R [[x]]") for n in range(30)]
    path = put(tmp_path / "a.xml", HEADER + "".join(pages) + FOOTER)
    whole = articles(path)
    assert whole == [f"Text {n} .".replace(" .", ".") for n in range(30) if n % 3]
    for size in (1, 300, 1000, 4000):
        monkeypatch.setattr(text_files, "MOST_PART_BYTES", size)
        assert len(plan_parts([SourceConfig(path=[str(path)])])) > 1
        assert articles(path) == whole


def multistream(folder: Path, *, index: bytes | None = None, packed: bool = True, name: str = "") -> Path:
    """Write a dump of six streams with two pages each between header and footer, and its index."""
    content, lines = bz2.compress(HEADER.encode()), []
    for first in range(0, 8, 2):
        lines += [f"{len(content)}:{n}:Title: {n}\n" for n in (first, first + 1)]
        content += bz2.compress("".join(page(f"P{n}", f"Text {n}.[[Datei:a|b]]") for n in (first, first + 1)).encode())
    content += bz2.compress(FOOTER.encode())
    found = "".join(lines).encode() if index is None else index
    put(folder / f"dewiki-multistream-index.txt{'.bz2' if packed else ''}", bz2.compress(found) if packed else found)
    return put(folder / "dewiki-multistream.xml.bz2", content)


@pytest.mark.parametrize("packed", [True, False])
def test_index_splits_multistream_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    path = multistream(tmp_path, packed=packed)
    expected = [f"Text {n}." for n in range(8)]
    assert articles(path) == expected
    assert len(plan_parts([SourceConfig(path=[str(path)])])) == 1
    monkeypatch.setattr(text_files, "MOST_PART_BYTES", 4)
    planned = plan_parts([SourceConfig(path=[str(tmp_path)])])
    assert [part.format for part in planned] == ["wikipedia"] * 5
    assert articles(path) == expected
    sources = [SourceConfig(path=[str(path)])]
    assert [list(read_part(sources, part)) for part in planned[:3]] == [[], expected[:2], expected[2:4]]
    monkeypatch.setattr(text_files, "MOST_PART_BYTES", 4 * 700)
    assert 1 < len(plan_parts(sources)) < 5
    assert articles(path) == expected


def test_index_of_page_range_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = multistream(tmp_path).rename(tmp_path / "dewiki-multistream1.xml-p1p9.bz2")
    (tmp_path / "dewiki-multistream-index.txt.bz2").rename(tmp_path / "dewiki-multistream-index1.txt-p1p9.bz2")
    monkeypatch.setattr(text_files, "MOST_PART_BYTES", 4)
    assert len(plan_parts([SourceConfig(path=[str(tmp_path)])])) == 5
    assert len(articles(path)) == 8


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"7:1:T\n", "is not the index of"),
        (b"999999:1:T\n", "is not the index of"),
        (b"<html>\n", "is not the index of a dump"),
    ],
)
def test_index_that_does_not_match_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: bytes, message: str
) -> None:
    monkeypatch.setattr(text_files, "MOST_PART_BYTES", 4)
    with pytest.raises(DataError, match=message):
        plan_parts([SourceConfig(path=[str(multistream(tmp_path, index=index))])])


def test_damage_in_a_later_stream_is_named(tmp_path: Path) -> None:
    path = multistream(tmp_path)
    content = bytearray(path.read_bytes())
    second = content.index(b"BZh", 10)
    content[second : second + 3] = b"???"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        articles(path)


def test_malformed_page_in_later_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MOST_PART_BYTES", 1)
    path = put(tmp_path / "a.xml", HEADER + page("A", "A.") + page("B", "B.").replace("<ns>", "<n>") + FOOTER)
    with pytest.raises(DataError, match="is not well-formed XML") as caught:
        articles(path)
    assert str(caught.value.facts["where"]).startswith("line 4, page 1, counted from byte ")


@pytest.mark.skipif(not REAL.exists(), reason=f"no dump in {REAL}")
def test_real_dump_is_read() -> None:
    sources = [SourceConfig(path=[str(REAL)])]
    [part] = plan_parts(sources)
    texts = list(read_part(sources, part))
    assert len(texts) == 110
    [anarchism] = [text for text in texts if text.startswith("Anarchism is a political philosophy that advocates")]
    assert 60_000 < len(anarchism) < 70_000
    assert not any(sign in anarchism for sign in ("[[", "]]", "{{", "}}", "<ref", "''", "thumb|"))


def test_parts_are_serializable(tmp_path: Path) -> None:
    [part] = plan_parts([SourceConfig(path=[str(multistream(tmp_path))])])
    assert isinstance(part, Part)
    assert {type(value) for value in vars(part.pieces[0]).values()} <= {str, int, type(None)}
