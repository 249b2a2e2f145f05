"""Check the prose of code, documentation, notebooks and help: banned phrases, sentence length, names of tests.

    python tests/prose.py                     # everything that `CHECKED` names
    python tests/prose.py docs orchestrator   # these files and folders
    python tests/prose.py --counts [PATH...]  # how often each banned phrase occurs

Banned phrases and their replacements are in `tests/prose_phrases.txt`, exemptions (only quoted matter, each with a
reason) in `tests/prose_exemptions.txt`. The check reads docstrings, comments and messages of Python files, text outside
of code blocks in Markdown, Markdown cells of notebooks, comments of YAML files and the frozen help. It exits with 1 if
it finds anything.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LONGEST_SENTENCE = 25  # words
LONGEST_TEST_NAME = 60  # characters
RIDDLE = re.compile(r"(What|How|Where|Who|Whom|Of|That|Such|As|If|None|Not|No)\b")
CHECKED = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "supply_chain",
    "docs",
    "notebooks",
    "benchmarks",
    "orchestrator",
    "train_jobs",
    "tests",
    "environments",
]
MESSAGE_WORDS = 3  # a string with fewer words is a key or a name, not prose
SELF = {"tests/prose.py", "tests/prose_phrases.txt", "tests/prose_exemptions.txt"}
CODE = re.compile(r"``[^`]+``|`[^`]*`|\]\([^)]*\)|<[^>]+>|https?://\S+|\{[^}]*\}")
SENTENCE_END = re.compile(r"(?<!\bal\.)(?<=[.!?;:])\s+")


class Text(NamedTuple):
    """One piece of prose: a docstring, a comment, a paragraph."""

    path: str
    line: int
    words: str
    is_docstring: bool = False


class Problem(NamedTuple):
    """A place to rewrite."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def read_phrases(path: Path = HERE / "prose_phrases.txt") -> dict[re.Pattern[str], str]:
    """Return the banned phrases: pattern -> what to write instead.

    A line is `PATTERN -> REPLACEMENT`. A pattern is a regular expression for whole words, case ignored; a space
    matches any white space.
    """
    phrases = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, replacement = line.split(" -> ", 1)
            spaced = pattern.strip().replace(" ", r"\s+")
            phrases[re.compile(rf"(?<![\w-])(?:{spaced})(?![\w-])", re.IGNORECASE)] = replacement
    return phrases


def read_exemptions(path: Path = HERE / "prose_exemptions.txt") -> dict[tuple[str, str], str]:
    """Return the exemptions: (file, quoted text) -> reason. A line is `FILE | TEXT | REASON`."""
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")
    ]
    rows = [tuple(part.strip() for part in line.split(" | ")) for line in lines]
    return {(file, quoted): reason for file, quoted, reason in rows}


def python_texts(path: str, source: str) -> Iterator[Text]:
    """Yield docstrings, messages and comments of a Python file; of tests, only docstrings and comments."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    is_test = path.startswith("tests/")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in docstrings or (not is_test and node.value.count(" ") >= MESSAGE_WORDS):
            yield Text(path, node.lineno, node.value, id(node) in docstrings)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], token.string.lstrip("#! "))


def markdown_texts(path: str, source: str, first: int = 1) -> Iterator[Text]:
    """Yield paragraphs, list items and table rows outside of code blocks."""
    fenced, start, lines = False, first, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], first):
        is_fence = line.lstrip().startswith(("```", "~~~"))
        breaks = fenced or is_fence or not line.strip() or re.match(r"\s*([-*|#>]|\d+\.)", line)
        if breaks and lines:
            yield Text(path, start, " ".join(lines))
            lines = []
        fenced ^= is_fence
        if not fenced and not is_fence and line.strip():
            if not lines:
                start = number
            lines.append(line.strip())


def texts(path: str) -> Iterator[Text]:
    """Yield the prose of one file."""
    source = Path(path).read_text(encoding="utf-8")
    match Path(path).suffix:
        case ".py":
            yield from python_texts(path, source)
        case ".md":
            yield from markdown_texts(path, source)
        case ".ipynb":
            for cell in json.loads(source)["cells"]:
                text = "".join(cell["source"])
                if cell["cell_type"] == "markdown":
                    yield from markdown_texts(path, text)
                else:
                    yield from (Text(path, 1, line.split("#", 1)[1]) for line in text.splitlines() if " # " in line)
        case ".yaml" | ".yml" | ".toml":
            for number, line in enumerate(source.splitlines(), 1):
                if match := re.search(r"(?:^|\s)#\s(.*)", line):
                    yield Text(path, number, match[1])
        case ".txt":
            yield from (Text(path, number, line) for number, line in enumerate(source.splitlines(), 1))


def phrase_problems(
    text: Text, phrases: dict[re.Pattern[str], str], exempt: dict[tuple[str, str], str]
) -> Iterator[Problem]:
    """Yield the banned phrases of a text."""
    words = CODE.sub(" ` ", text.words)
    for file, quoted in exempt:
        if file == text.path:
            words = words.replace(quoted, " ` ")
    for pattern, replacement in phrases.items():
        if match := pattern.search(words):
            line = text.line + words[: match.start()].count("\n")
            yield Problem(text.path, line, f"'{' '.join(match[0].split())}': write {replacement}")


def summary_problems(text: Text) -> Iterator[Problem]:
    """Yield a problem for a docstring whose summary is neither imperative nor a noun phrase."""
    if text.is_docstring and (match := RIDDLE.match(text.words.lstrip())):
        yield Problem(text.path, text.line, f"a summary that begins with '{match[0]}': name the object, or use a verb")


def sentence_problems(text: Text) -> Iterator[Problem]:
    """Yield the sentences of a document that are too long."""
    if text.words.startswith("|"):
        return
    for sentence in SENTENCE_END.split(CODE.sub("X", text.words)):
        length = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if length > LONGEST_SENTENCE:
            start = " ".join(sentence.split()[:8])
            yield Problem(
                text.path, text.line, f"a sentence of {length} words, at most {LONGEST_SENTENCE}: {start} ..."
            )


def name_problems(path: str) -> Iterator[Problem]:
    """Yield the tests whose name is too long."""
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r"\s*(?:async )?def (test_\w+)", line)
        if match and len(match[1]) > LONGEST_TEST_NAME:
            yield Problem(
                path, number, f"a name of {len(match[1])} characters, at most {LONGEST_TEST_NAME}: {match[1]}"
            )


def problems(path: str) -> Iterator[Problem]:
    """Yield all problems of one file."""
    phrases, exempt = read_phrases(), read_exemptions()
    for text in texts(path):
        yield from phrase_problems(text, phrases, exempt)
        yield from summary_problems(text)
        if Path(path).suffix in {".md", ".ipynb"}:
            yield from sentence_problems(text)
    if Path(path).name.startswith("test_"):
        yield from name_problems(path)


def checked_files(paths: list[str]) -> list[str]:
    """Return the tracked prose files below some paths."""
    listed = subprocess.run(["git", "ls-files", "--", *paths], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    suffixes = {".py", ".md", ".ipynb", ".yaml", ".yml", ".toml"}
    return [
        name
        for name in listed
        if (Path(name).suffix in suffixes or name.endswith("help.txt")) and name not in SELF and Path(name).is_file()
    ]


def main() -> int:
    """Print all problems, or how often each phrase occurs."""
    options, paths = [a for a in sys.argv[1:] if a.startswith("-")], [a for a in sys.argv[1:] if not a.startswith("-")]
    files = checked_files(paths or CHECKED)
    found = [problem for path in files for problem in problems(path)]
    if "--counts" in options:
        for message, count in Counter(p.message.split(":")[0] for p in found).most_common():
            print(count, message)
    else:
        print(*found, sep="\n")
    print(f"{len(files)} files, {len(found)} places to rewrite", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
