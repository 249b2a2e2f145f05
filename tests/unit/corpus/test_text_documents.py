"""Rules that separate the documents of plain text."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from orchestrator.jobs.prepare.plan import PreparePlan
from orchestrator.jobs.resolve import make_plan, resolve_spec
from tests.conftest import SHARED
from tests.unit.corpus.small_corpora import prepare, sentences
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.text_documents import count_documents, document_rules, without_gutenberg
from train_jobs.config import TextConfig
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part
from train_jobs.corpus.steps.records import store_key

BOOKS = SHARED / "data" / "gutenberg"
HEADER = (
    "The Project Gutenberg EBook of A, by B\n\nTitle: A\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A,\nLONG ***\n\n"
)
FOOTER = (
    "\n\nEnd of the Project Gutenberg EBook of A, by B\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A ***\n\nlicence\n"
)


def read(*sources: SourceConfig) -> list[str]:
    return [document for part in plan_parts(sources) for document in read_part(sources, part)]


def source(path: Path, **options: object) -> SourceConfig:
    return SourceConfig(path=[str(path)], **options)  # type: ignore[arg-type]


def book(number: int, paragraphs: int = 300) -> str:
    """Return a book of paragraphs of 5 sentences, every third of 1."""
    lines = sentences(number, 5 * paragraphs)
    counts = [5 if index % 3 else 1 for index in range(paragraphs)]
    return "\n\n".join(" ".join(lines[5 * index : 5 * index + count]) for index, count in enumerate(counts)) + "\n"


def notes(number: int) -> str:
    """Return notes of 4 sentences, as long as a book."""
    lines = sentences(number, 1200)
    return "\n\n".join(" ".join(lines[4 * index : 4 * index + 4]) for index in range(300)) + "\n"


@pytest.fixture
def books(tmp_path: Path) -> Path:
    folder = tmp_path / "books"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(book(number))
    return folder


@pytest.mark.parametrize(
    ("rule", "documents"),
    [
        ("file", ["CHAPTER 1\none\n\ntwo\nCHAPTER 2\n\nthree"]),
        ("blank-line", ["CHAPTER 1\none", "two\nCHAPTER 2", "three"]),
        ("line", ["CHAPTER 1", "one", "two", "CHAPTER 2", "three"]),
        (r"CHAPTER \d", ["one\n\ntwo", "three"]),
        (r"(?=CHAPTER )", ["CHAPTER 1\none\n\ntwo", "CHAPTER 2\n\nthree"]),
    ],
)
def test_rule_separates_documents(tmp_path: Path, rule: str, documents: list[str]) -> None:
    (tmp_path / "a.txt").write_text("\nCHAPTER 1\none\n\ntwo\nCHAPTER 2\n\nthree\n \n")
    assert [text.strip() for text in read(source(tmp_path / "a.txt", document=rule))] == documents


@pytest.mark.parametrize("rule", ["file", "line", "(?=[A-F])"])
def test_rule_gives_same_documents_for_any_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    (tmp_path / "a.txt").write_text(book(1, 20))
    whole = read(source(tmp_path / "a.txt", document=rule))
    monkeypatch.setattr("train_jobs.artifacts.text_files.MOST_PART_BYTES", 100)
    monkeypatch.setattr("train_jobs.corpus.sources.text_formats.CHUNK", 64)
    assert read(source(tmp_path / "a.txt", document=rule)) == whole
    assert (len(plan_parts([source(tmp_path / "a.txt", document=rule)])) > 1) == (rule == "line")


def test_several_books_are_one_document_each(books: Path) -> None:
    assert document_rules([source(books)]) == ["file"]
    assert [len(document) for document in read(source(books))] == [len(book(number)) - 1 for number in range(3)]
    one_by_one = [source(path) for path in sorted(books.iterdir())]
    assert read(*one_by_one) == read(source(books))


def test_articles_and_single_book_are_split_at_blank_lines(books: Path, tmp_path: Path) -> None:
    assert document_rules([source(books / "0.txt")]) == ["blank-line"]
    articles = tmp_path / "articles"
    articles.mkdir()
    for number in range(3):
        (articles / f"{number}.txt").write_text("\n\n".join([" ".join(sentences(number, 60))] * 30))
        (articles / f"{number}.text").write_text(book(number, 30))
    assert document_rules([source(articles)]) == ["blank-line"]
    for number in range(3):
        (tmp_path / f"notes-{number}.txt").write_text(notes(number))
    assert document_rules([source(tmp_path / "notes-*.txt")]) == ["blank-line"]


def test_plan_states_rule_and_counts(books: Path, tmp_path: Path) -> None:
    for kind in ("prepare", "pretrain"):
        plan = make_plan(resolve_spec(kind, sets=[f"data.text=[{books}]"], environ={}), home=tmp_path / "home")
        text = " ".join(plan.summary().split())
        assert "3 files, 3 documents one per file (long files with many blank lines)" in text
        assert "with document: blank-line 900" in text
        assert any("here 1 of 3" in warning for warning in plan.warnings)
    single = make_plan(resolve_spec("prepare", sets=[f"data.text=[{books}/0.txt]"], environ={}), home=tmp_path / "home")
    assert any("its 300 paragraphs become documents" in warning for warning in single.warnings)
    assert isinstance(single, PreparePlan)
    assert single.documents[0].others == {"file": 1}


def test_count_of_large_text_is_extrapolated(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train_jobs.artifacts.text_documents.COUNTED_BYTES", 60_000)
    [count] = count_documents([source(books)])
    assert not count.exact
    assert count.documents == 3
    assert 700 < count.others["blank-line"] < 1100


def test_gutenberg_header_and_footer_are_stripped(tmp_path: Path) -> None:
    text = HEADER + "Produced by C\nand D\n\n" + "one\n\ntwo" + FOOTER + HEADER + "three\n" + FOOTER
    (tmp_path / "a.txt").write_text(text)
    assert read(source(tmp_path / "a.txt", document="file", strip_gutenberg=True)) == ["one\n\ntwo\n\nthree"]
    assert len(read(source(tmp_path / "a.txt"))) > 10
    plain = book(1)
    assert "".join(without_gutenberg([plain])) == plain


def test_manifest_states_rule(books: Path, tmp_path: Path) -> None:
    store = prepare(TextConfig(text=[source(books), source(books / "0.txt", document="line")]), tmp_path / "store")
    assert [counts.document for counts in store.manifest.sources] == ["file", "line"]
    assert [counts.documents for counts in store.manifest.sources] == [3, 300]


def test_rule_is_part_of_keys(books: Path) -> None:
    rules = [{}, {"document": "file"}, {"document": "line"}, {"strip_gutenberg": True}]
    data = [TextConfig(text=[source(books, **rule)]) for rule in rules]
    assert len({store_key(each, fingerprint(each.text)) for each in data}) == 4


@pytest.mark.skipif(not BOOKS.exists(), reason=f"no books in {BOOKS}")
def test_real_books_are_whole_and_without_licence(tmp_path: Path) -> None:
    for path in sorted(BOOKS.glob("*.xz"))[:12]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = read(source(tmp_path, strip_gutenberg=True))
    assert len(found) == 12
    assert all("Gutenberg-tm" not in document for document in found)
    whole = [lzma.decompress(path.read_bytes()).decode().replace("\r\n", "\n") for path in sorted(tmp_path.iterdir())]
    for document, raw in zip(found, whole, strict=True):
        assert 18_000 < len(raw) - len(document) < 25_000
    [count] = count_documents([source(tmp_path)])
    assert (count.files, count.documents, count.exact) == (12, 12, True)
    assert count.others["blank-line"] > 60_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "lines"}, 'did you mean "line"'),
        ({"document": "(a"}, "not a valid pattern"),
        ({"document": "line", "format": "jsonl"}, "document is for plain text"),
        ({"strip_gutenberg": True, "format": "wikipedia"}, "strip_gutenberg is for plain text"),
    ],
)
def test_wrong_rule_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        source(Path("a"), **options)
