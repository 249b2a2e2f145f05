"""Every promise about faults in the documentation has its own evidence: a row of docs/faults.md, or a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FAULTS = REPOSITORY / "docs" / "faults.md"
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
# "never" alone is no promise about a fault: most sentences with it are rules ("keys are never printed")
PROMISE = re.compile(
    r"(?<!not )bit-exact|bit for bit|byte-identical|(?<!not )exactly once"
    r"|nothing is lost|\blose(s|) (nothing|only|at most)"
    r"|no \w+ (runs|is \w+) twice"
    r"|(?<!processes that )surviv\w+ (the (loss|death|end)|an?|kills?|crash\w*|restarts?|preemption\w*|eviction\w*)\b"
    r"|never( [\w-]+){0,4} (a second|twice|half|waits|stops)\b|never( [\w-]+)? half-"
    r"|never (loses?|lost|overwrit\w+|fails?|stops?|restarted)\b|never( \w+){0,2} (lost|overwritten|twice)\b",
    re.IGNORECASE,
)
EVIDENCE = re.compile(r"faults\.md#|determinism\.md|security\.md#|tests/(e2e|faults|unit|pains|wire|contract)")
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`[^`]*`")  # what a program prints, or a name
BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |[|#]))")


def bare_promises(text: str) -> list[str]:
    """Return the paragraphs, list items and rows of tables with a promise that have no evidence of their own."""
    blocks = [block.strip() for block in BLOCK.split(FENCED.sub("", text))]
    return [
        block
        for block in blocks
        if not block.startswith("#") and PROMISE.search(QUOTED.sub("", block)) and not EVIDENCE.search(block)
    ]


@pytest.mark.parametrize(
    "promise",
    [
        "A kill during a write loses only that checkpoint.",
        "Nothing is lost.",
        "A result is never lost.",
        "Files are never overwritten.",
        "A step never runs twice.",
        "A lost reply never creates a second job.",
        "It never loads a half-written checkpoint.",
        "Sweeps survive the loss of their driver.",
        "A server that is away never stops a run.",
        "The weights are bit-exact.",
    ],
)
def test_promise_needs_evidence_in_its_own_block(promise: str) -> None:
    elsewhere = "See [faults](faults.md#kill-all-pretrain)."
    assert bare_promises(f"# A page\n\n{elsewhere}\n\n{promise}\n") == [promise]
    assert bare_promises(f"- {elsewhere}\n- {promise}\n") == [f"- {promise}"]
    assert bare_promises(f"{promise} {elsewhere}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "Keys are never printed or stored.",
        "Ctrl-C stops following, never the job.",
        "Processes that survived a killed supervisor are listed.",
        "The job prints `not bit-exact with an uninterrupted run`.",
        "Such a run is not bit-exact.",
    ],
)
def test_other_statements_need_no_evidence(text: str) -> None:
    assert bare_promises(text) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != FAULTS], ids=lambda page: page.name)
def test_promises_name_their_evidence(page: Path) -> None:
    bare = bare_promises(page.read_text(encoding="utf-8"))
    assert not bare, "promises without a link of their own to a row of docs/faults.md or to a test"


def test_evidence_exists() -> None:
    for page in PAGES:
        for path in re.findall(r"tests/[\w/]+\.py", page.read_text(encoding="utf-8")):
            assert (REPOSITORY / path).is_file(), f"{page.name} names {path}"
        for row in re.findall(r"faults\.md#([\w-]+)", page.read_text(encoding="utf-8")):
            (cells,) = re.findall(rf'<a id="{row}"></a>(.*)', (REPOSITORY / "docs" / "faults.md").read_text())
            assert int(cells.split(" | ")[2]) > 0, f"{page.name} links to {row}, which is not tried yet"
