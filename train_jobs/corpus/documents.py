"""Files in, documents out: the text of a corpus, one document at a time.

Plain text is UTF-8; blank lines separate documents, so a file without any is one document. That is the format of
Google's `create_pretraining_data.py`. The embedded corpus is what every Python carries along: the docstrings of its
standard library and the topics of its language reference.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from train_jobs.config.errors import DataError
from train_jobs.config.sources import embedded_files, text_files

BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
MIN_DOCSTRING_CHARACTERS = 200  # a module that says less has nothing to learn from
TOPICS = ("pydoc_data", "topics.py")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_TRIPLE_QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
_RULE = re.compile(r"^[ \t]*[^\w\s]{3,}[ \t]*$\n?", re.MULTILINE)  # a title's underline: each sign would be a token


class Corpus:
    """The documents of a job, as often as they are asked for: each iteration reads the files again, line by line.

    Args:
        text: `data.text` of the job; empty means the embedded corpus, which is small and stays in memory.

    Raises:
        DataError: a path does not exist, or holds no text (see `sources.text_files`); when iterated, a file that is
            not UTF-8 or that cannot be read.
    """

    def __init__(self, text: list[Path]) -> None:
        self._files = text_files(text) if text else embedded_files()
        self._embedded = None if text else list(embedded_documents(self._files))

    def __iter__(self) -> Iterator[str]:
        return read_documents(self._files) if self._embedded is None else iter(self._embedded)


def read_documents(files: list[Path]) -> Iterator[str]:
    """Yields each document of UTF-8 text files, in order; its lines are joined by newlines.

    A byte-order mark and carriage returns are dropped. No more than one document is in memory.

    Raises:
        DataError: a file is not UTF-8 (the message says where) or cannot be read.
    """
    for path in files:
        lines: list[str] = []
        for line in _lines(path):
            if line.strip():
                lines.append(line)
            elif lines:
                yield "\n".join(lines)
                lines = []
        if lines:
            yield "\n".join(lines)


def embedded_documents(files: list[Path]) -> Iterator[str]:
    """Yields the documents in Python source files: each topic of the reference, and each module's docstrings.

    A module's docstrings (module, classes, functions, in source order) make one document, joined by blank lines.
    Modules with fewer than 200 characters of them, and files that do not parse, are skipped.
    """
    for path in files:
        source = path.read_text(encoding="utf-8", errors="replace")
        if path.parts[-2:] == TOPICS:
            yield from _topics(source)
        elif document := _docstrings(source):
            yield document


def _lines(path: Path) -> Iterator[str]:
    try:
        stream = path.open("rb")
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {path}") from None
    with stream:
        offset = 0
        for number, raw in enumerate(stream, start=1):
            content = raw.removeprefix(BOM) if number == 1 else raw
            try:
                yield content.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as problem:
                byte = offset + len(raw) - len(content) + problem.start
                raise _not_utf8(path, byte=byte, line=number, raw=raw) from None
            offset += len(raw)


def _not_utf8(path: Path, *, byte: int, line: int, raw: bytes) -> DataError:
    encoding = "utf-16" if line == 1 and raw.startswith(UTF16_BOMS) else "latin1"
    converted = path.with_suffix(f".utf8{path.suffix}")
    return DataError(
        f"{path} is not UTF-8",
        facts={"where": f"byte {byte}, line {line}"},
        fix=f"iconv -f {encoding} -t utf-8 {path} > {converted}",
    )


def _topics(source: str) -> Iterator[str]:
    """The values of the one dict literal of pydoc_data/topics.py, which is data: it is read, never run."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            texts = [value.value for value in node.values if isinstance(value, ast.Constant)]
            yield from (_without_rules(text) for text in texts if isinstance(text, str) and text.strip())


def _docstrings(source: str) -> str | None:
    if sum(len(text) for text in _TRIPLE_QUOTED.findall(source)) < MIN_DOCSTRING_CHARACTERS:
        return None  # a third of the library, and its largest tables: not worth parsing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in someone else's source
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    document = "\n\n".join(_walk(tree))
    return _without_rules(document) if len(document) >= MIN_DOCSTRING_CHARACTERS else None


def _walk(node: Documented) -> Iterator[str]:
    if docstring := ast.get_docstring(node):
        yield docstring
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child)


def _without_rules(text: str) -> str:
    return _RULE.sub("", text).strip()
