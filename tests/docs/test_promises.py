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
    r"|nothing (is|was) (lost|changed|created|deleted)|nothing gets|no \w+( of( \w+){1,3})? (is|gets) lost"
    r"|\blose(s|) (nothing|only|at most)|\bchanges? no\b|\bsame bytes\b|\| *nothing *(\||;|if\b)"
    r"|\balways (reported|retried|restarted|resumed|saved|kept|stored|saves?|keeps?|resumes?)\b"
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
        "Nothing gets lost.",
        "No data is lost.",
        "No point of a sweep is lost.",
        "A metric is always reported once.",
        "SIGTERM always saves a checkpoint.",
        "A kill changes no byte.",
        "The store has the same bytes after any number of kills.",
        "| a lost connection | nothing; the run continues | the run |",
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
    marker = "" if promise.startswith("|") else "- "
    assert bare_promises(f"- {elsewhere}\n{marker}{promise}\n") == [f"{marker}{promise}"]
    assert bare_promises(f"{promise} {elsewhere}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "Keys are never printed or stored.",
        "Ctrl-C stops following, never the job.",
        "Processes that survived a killed supervisor are listed.",
        "The job prints `not bit-exact with an uninterrupted run`.",
        "Such a run is not bit-exact.",
        "Weights are always fp32.",
        "| rejected settings | nothing to strip |",
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
            (cells,) = re.findall(rf'<a id="{row}"></a>(.*)', FAULTS.read_text(encoding="utf-8"))
            assert (why := doubt(cells)) == "", f"{page.name} links to {row}, which {why}"


def doubt(cells: str) -> str:
    """Return why a row of docs/faults.md, from its first cell on, is no evidence; empty: it is."""
    if int(cells.split(" | ")[2]) == 0:
        return "is not tried yet"
    return "has a failing cell" if "**" in cells else ""


def test_row_without_trials_or_with_failing_cell_is_no_evidence() -> None:
    row = "a fault | sweep | 2 | 0 | 2 | 2 | 2 | {} | 1 of 1 | - |"
    assert doubt(row.format("2")) == ""
    assert doubt(row.format("**1**")) == "has a failing cell"
    assert doubt("a fault | sweep | 0 | - | - | - | - | - | - | - |") == "is not tried yet"
