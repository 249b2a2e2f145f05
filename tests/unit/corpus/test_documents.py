"""Reading documents from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.corpus.small_corpora import read_documents
from train_jobs.config import DataError
from train_jobs.corpus.sources.text_formats import embedded_documents


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"one\ntwo\n", ["one\ntwo"]),
        (b"one\n\ntwo", ["one", "two"]),
        (b"\n\none\n \t \n\n\ntwo\n\n", ["one", "two"]),
        (b"one\r\nmore\r\n\r\ntwo\r\n", ["one\nmore", "two"]),
        (b"\xef\xbb\xbfone\n", ["one"]),
        (b"\xef\xbb\xbf\none\n", ["one"]),
        (b"", []),
        (b"\n \n", []),
        (b"one \n  \t more\n  ", ["one \n  \t more"]),
        (b"one\r\r\n\r", ["one"]),
        ("na\u00efve \U0001f600\n\n\u6c34".encode(), ["na\u00efve \U0001f600", "\u6c34"]),
    ],
)
def test_blank_lines_separate_documents(tmp_path: Path, content: bytes, documents: list[str]) -> None:
    assert read_documents(write(tmp_path / "a.txt", content)) == documents


def test_document_never_spans_two_files(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.txt", b"one"), write(tmp_path / "b.txt", b"two")]
    assert read_documents(*files) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"fine\ncaf\xe9 au lait\n", "byte 8, line 2"),
        (b"\xef\xbb\xbffine \xff", "byte 8, line 1"),
        (b"\xef\xbb\xbf" + b"line\n" * 300_000 + b"\xff", "byte 1500003, line 300001"),
    ],
)
def test_invalid_utf8_reports_position_and_fix(tmp_path: Path, content: bytes, where: str) -> None:
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(DataError, match=r"a\.txt is not UTF-8") as caught:
        read_documents(path)
    assert caught.value.facts["where"] == where
    assert caught.value.fix == f"iconv -f latin1 -t utf-8 {path} > {tmp_path / 'a.utf8.txt'}"


def test_docstrings_are_in_source_order_without_rulers(tmp_path: Path) -> None:
    long = "Long enough to be kept. " * 10
    source = f'''"""Title
=====

{long}"""
def outer():
    """About outer."""
class Thing:
    """About Thing."""
    def method(self):
        """About method \\\\d."""
    pattern = "\\d"
'''
    module = tmp_path / "module.py"
    module.write_text(source)
    [document] = embedded_documents([module])
    assert "===" not in document
    places = [document.index(part) for part in ("Title", "Long", "About outer", "About Thing", "About method")]
    assert places == sorted(places)


@pytest.mark.parametrize("source", ['"""Short."""\n', "x = 1\n", '"""' + "words " * 100 + '"""\ndef broken(:\n'])
def test_nearly_empty_and_broken_modules_skipped(tmp_path: Path, source: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source)
    assert list(embedded_documents([module])) == []


def test_reference_topics_are_documents_and_not_executed(tmp_path: Path) -> None:
    topics = tmp_path / "pydoc_data" / "topics.py"
    topics.parent.mkdir()
    topics.write_text("raise SystemExit\ntopics = {'a': 'Title\\n*****\\n\\n' 'Text of a.', 'b': 'Text of b.'}\n")
    assert list(embedded_documents([topics])) == ["Title\n\nText of a.", "Text of b."]


@pytest.mark.long
def test_standard_library_contains_corpus() -> None:
    documents = read_documents()
    assert len(documents) > 300
    assert sum(map(len, documents)) > 1_000_000
    assert read_documents() == documents
