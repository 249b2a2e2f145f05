"""Significance tests between runs that were scored on the same rows.

    found = score_tests(baseline, [other, ...])

The job stores the rows behind its scores as scored_rows.json; `train_jobs.evaluation.paired_tests` has the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from orchestrator.runs.results import read_results
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from train_jobs.evaluation.scored_rows import ScoredRows

SCORED_ROWS = "scored_rows.json"
ASSUMPTIONS = (
    "p is two-sided: how likely a difference this large is if both models are equally good. Accuracy: McNemar's test;"
    " other metrics: random swaps of the two models' predictions. It covers the chance of the rows, not that of"
    " training: for that, compare several seeds."
)
HOLM = "p (Holm) is adjusted for the number of runs, by metric."
SEVERAL_METRICS = "p is not adjusted for the number of metrics."


class ScoredRun(Protocol):
    """A run with its result and the rows behind it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def result(self) -> Mapping[str, Any]:
        """Final figures of the job; empty until it has completed."""

    @property
    def scored(self) -> Mapping[str, bytes]:
        """Task of GLUE, or "" -> its scored_rows.json; empty bytes without that file."""


class ScoreTest(Config):
    """The test of one metric between two runs."""

    a: str
    """Name of one run."""
    b: str
    """Name of the other."""
    scored: str
    """Scored set: dev, test, input; for all of GLUE after the task."""
    rows: int
    """Number of its rows: texts, questions or sentences."""
    metric: str
    """Name of the metric."""
    score_a: float
    """Score of run a on these rows."""
    score_b: float
    """Score of run b."""
    p: float
    """Two-sided p-value."""
    p_holm: float | None = None
    """p adjusted for the number of runs that are compared with a (Holm 1979). None: there is only one."""
    method: str
    """Test with its number of discordant rows or of rounds."""

    @property
    def difference(self) -> float:
        """Score of b minus that of a."""
        return self.score_b - self.score_a


class ScoreTests(Config):
    """All tests of a comparison."""

    tests: list[ScoreTest] = Field(default=[])
    """One for each scored set, metric and run."""
    notes: list[str] = Field(default=[])
    """What the tests assume, and why some were not possible."""


def score_tests(baseline: ScoredRun, others: Sequence[ScoredRun]) -> ScoreTests:
    """Test each run against the first one.

    Args:
        baseline: the run that all others are compared with.
        others: the others. Runs without scores are left out.
    """
    if read_results(baseline.result) is None:
        return ScoreTests()
    tests: list[ScoreTest] = []
    notes: list[str] = []
    compared = [other for other in others if read_results(other.result) is not None]
    for other in compared:
        for found in _pair_tests(baseline, other):
            if isinstance(found, str):
                notes.append(found)
            else:
                tests.append(found)
    if len(compared) > 1:
        tests = _adjusted(tests)
    if tests:
        seeds = [note for run in (baseline, *compared) for note in _best_seed(run)]
        notes = [ASSUMPTIONS, HOLM if len(compared) > 1 else SEVERAL_METRICS, *seeds, *notes]
    return ScoreTests(tests=tests, notes=list(dict.fromkeys(notes)))


def scored_places(result: Mapping[str, Any]) -> dict[str, str]:
    """Return task of GLUE, or "" -> path of its scored rows among the run's outputs; nothing if it has no scores."""
    if "table" in result:
        return {task: f"{task}/{SCORED_ROWS}" for task in result.get("tasks", {})}
    return {"": SCORED_ROWS} if "metrics" in result else {}


def _pair_tests(a: ScoredRun, b: ScoredRun) -> Iterator[ScoreTest | str]:
    """Yield the tests of two runs, and a note for each set that cannot be tested."""
    from train_jobs.evaluation.paired_tests import NotPairedError, paired_tests

    missing = [run.name for run in (a, b) if not any(run.scored.values())]
    if missing:
        again = f"orchestrator submit evaluate --model {missing[0]} --data FILE"
        yield f"no test: no {SCORED_ROWS} in {', '.join(missing)}; older versions did not write it. Fix: {again}"
        return
    try:
        mine, theirs = _sets(a), _sets(b)
    except ValueError as problem:
        yield f"no test of {a.name} and {b.name}: {problem}"
        return
    for name, rows in mine.items():
        other = theirs.get(name) or next(
            (one for one in theirs.values() if sorted(one.rows) == sorted(rows.rows)), None
        )
        if other is None:
            yield f"no test on {name}: {b.name} was not scored on it"
            continue
        try:
            found = paired_tests(rows, other)
        except NotPairedError as reason:
            yield f"no test of {a.name} and {b.name} on {name}: {reason}"
            continue
        for one in found:
            about = {"a": a.name, "b": b.name, "scored": name, "rows": len(rows.rows)}
            yield ScoreTest(**about, metric=one.metric, score_a=one.a, score_b=one.b, p=one.p, method=one.method)


def _sets(run: ScoredRun) -> dict[str, ScoredRows]:
    """Return name of a scored set -> its rows.

    Raises:
        ValueError: a document is damaged, or of another version.
    """
    from train_jobs.evaluation.scored_rows import read_scored_rows

    documents = {task: read_scored_rows(text) for task, text in run.scored.items() if text}
    return {f"{task} {name}".strip(): rows for task, sets in documents.items() for name, rows in sets.items()}


def _adjusted(tests: Iterable[ScoreTest]) -> list[ScoreTest]:
    """Return the tests with p adjusted for the number of runs, in the order of sets and metrics."""
    from train_jobs.evaluation.paired_tests import holm

    families: dict[tuple[str, str], list[ScoreTest]] = {}
    for test in tests:
        families.setdefault((test.scored, test.metric), []).append(test)
    return [
        test.model_copy(update={"p_holm": p})
        for family in families.values()
        for test, p in zip(family, holm([test.p for test in family]), strict=True)
    ]


def _best_seed(run: ScoredRun) -> Iterator[str]:
    """Yield a note if the tested model is the best of several seeds."""
    tasks = run.result.get("tasks", {"": run.result})
    for task, result in tasks.items():
        if len(seeds := result.get("seeds") or []) > 1:
            where = f" on {task}" if task else ""
            yield f"{run.name}{where}: seed {result['best_seed']}, the best of {len(seeds)} on dev"
