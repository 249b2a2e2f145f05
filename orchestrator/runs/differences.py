"""Differences between runs: spec, compute, environment, data, code and results.

A value that only one run has is missing on the other's side, not null.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.runs.significance import ScoreTests, score_tests
from orchestrator.runs.status import RunStatus, attempt_seconds
from orchestrator.support.redact import HIDDEN, is_secret
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.layers import dotted, leaves
from train_jobs.config.fields import Config

# keys of a result: a path below the run's own folder always differs, and the settings are in the spec
NOT_COMPARED = {"model", "config"}

Pairs = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Side:
    """One run of a comparison.

    Attributes:
        status: its status.
        plan: its plan, as `Plan.as_dict` returned it.
        result: its final figures; empty until it has completed.
        code: the folder of its code; None if that is not on this machine.
        scored: task of GLUE, or "" -> its scored_rows.json; read only for a comparison.
    """

    status: RunStatus
    plan: Mapping[str, Any]
    result: Mapping[str, Any]
    code: Path | None
    scored: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.status.name


class CodeDifference(Config):
    """Differences of the code; paths are those of the snapshot."""

    digest: dict[str, str]
    """Side -> SHA-256 of the snapshot."""
    added: list[str]
    """Files that only b has."""
    removed: list[str]
    """Files that only a has."""
    changed: list[str]
    """Files whose content differs."""
    patch: str | None
    """Unified diff of the changed text files, if requested."""


class Difference(Config):
    """Each pair is key -> {"a": value, "b": value}."""

    a: str
    """Name of one run."""
    b: str
    """Name of the other."""
    spec: Pairs
    """Keys of the specs by dotted path; values of variables named like secrets are hidden."""
    compute: Pairs
    """Nodes, processes, device and threads, as resolved."""
    environment: Pairs
    """Versions of Python and packages."""
    data: Pairs
    """The text by name, size and content."""
    code: CodeDifference | None
    """None: the code is the same."""
    results: Pairs
    """State, steps, time and metrics of both by dotted path, equal ones too; numbers also with "difference", b - a."""
    significance: ScoreTests
    """Tests of the scores, if both were scored on the same rows."""


def compare(a: Side, b: Side, *, patch: bool = False) -> Difference:
    """Compare two runs.

    Args:
        a: one run.
        b: the other.
        patch: also compare changed text files line by line, which reads the code of both.
    """
    specs = _pairs(_flat_spec(a), _flat_spec(b))
    return Difference(
        a=a.status.name,
        b=b.status.name,
        spec={key: {side: _hide_secret(key, value) for side, value in pair.items()} for key, pair in specs.items()},
        compute=_pairs(_flat(a.plan["compute"]), _flat(b.plan["compute"])),
        environment=_pairs(a.plan["environment"], b.plan["environment"]),
        data=_pairs(a.plan["data"], b.plan["data"]),
        code=_code(a, b, patch=patch),
        results=_results(_flat(_outcome(a)), _flat(_outcome(b))),
        significance=score_tests(a, [b]),
    )


class RunTable(Config):
    """Several runs side by side: key -> run's name -> value."""

    names: list[str]
    """The runs, in the order given."""
    settings: dict[str, dict[str, Any]]
    """Differences of spec, compute, environment, data and code; a run without the key is left out."""
    results: dict[str, dict[str, Any]]
    """State, steps, time and metrics of all."""


def tabulate(sides: Sequence[Side]) -> RunTable:
    """Compare any number of runs."""
    names = [side.status.name for side in sides]
    settings = _by_key(names, [_settings(side) for side in sides])
    return RunTable(
        names=names,
        settings={key: values for key, values in settings.items() if _differ(values, len(names))},
        results=_by_key(names, [_outcome(side) for side in sides]),
    )


def _settings(side: Side) -> dict[str, Any]:
    """Return the settings of a run by dotted keys; secrets are hidden."""
    plan = side.plan
    return {
        **{key: _hide_secret(key, value) for key, value in _flat_spec(side).items()},
        **{f"compute.{key}": value for key, value in _flat(plan["compute"]).items()},
        **{f"environment.{key}": value for key, value in plan["environment"].items()},
        **{f"data.{key}": value for key, value in plan["data"].items()},
        "code": plan["snapshot"]["digest"],
    }


def _by_key(names: Sequence[str], trees: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: {name: tree[key] for name, tree in zip(names, trees, strict=True) if key in tree} for key in keys}


def _differ(values: Mapping[str, Any], runs: int) -> bool:
    given = [*values.values()]
    return len(given) < runs or any(value != given[0] for value in given)


def _flat_spec(side: Side) -> dict[str, Any]:
    """Return the spec without `compute`, which the plan has in resolved form."""
    return _flat({key: value for key, value in side.plan["spec"].items() if key != "compute"})


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted keys; the items of a list of sections have their number as a key, from 0."""
    return {dotted(path): value for path, value in leaves(_numbered(tree)) if value != {}}


def _numbered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbered(inner) for key, inner in value.items()}
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return {str(number): _numbered(item) for number, item in enumerate(value)}
    return value


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Pairs:
    """Return the keys that differ: those of a in its order, then those that only b has."""
    keys = [*a, *(key for key in b if key not in a)]
    both = {key: {side: tree[key] for side, tree in (("a", a), ("b", b)) if key in tree} for key in keys}
    return {key: pair for key, pair in both.items() if len(pair) < 2 or pair["a"] != pair["b"]}


def _hide_secret(key: str, value: Any) -> Any:
    return HIDDEN if is_secret(key) else value


def _code(a: Side, b: Side, *, patch: bool) -> CodeDifference | None:
    digest = {"a": a.plan["snapshot"]["digest"], "b": b.plan["snapshot"]["digest"]}
    if digest["a"] == digest["b"]:
        return None
    if a.code is None or b.code is None:  # code on Azure: the digests in the plans show that it differs, but not where
        return CodeDifference(digest=digest, added=[], removed=[], changed=[], patch=None)
    old, new = _hashes(a.code), _hashes(b.code)
    changed = sorted(path for path in old.keys() & new.keys() if old[path] != new[path])
    return CodeDifference(
        digest=digest,
        added=sorted(new.keys() - old.keys()),
        removed=sorted(old.keys() - new.keys()),
        changed=changed,
        patch="".join(_patch(a.code, b.code, path) for path in changed) if patch else None,
    )


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


def _patch(a: Path, b: Path, name: str) -> str:
    try:
        old, new = ((folder / name).read_text(encoding="utf-8").splitlines() for folder in (a, b))
    except UnicodeDecodeError:
        return f"--- a/{name}\n+++ b/{name}\nnot text\n"
    return "".join(f"{line}\n" for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm=""))


def _outcome(side: Side) -> dict[str, Any]:
    """Return the newest metrics of a run, replaced by the final figures of a completed one."""
    status = side.status
    figures = {key: value for key, value in side.result.items() if key not in NOT_COMPARED}
    # only finished attempts: a time that still grows would differ in every comparison
    lasted = [attempt for attempt in status.attempts if attempt.ended is not None]
    known = {
        "state": status.state.value,
        "exit_code": status.exit_code,
        "step": status.step,
        "attempts": len(status.attempts) or None,
        "seconds": round(attempt_seconds(lasted, 0.0), 1) if lasted else None,
        "cost": status.cost,
    }
    return {key: value for key, value in {**status.metrics, **figures, **known}.items() if value is not None}


def _results(a: Mapping[str, Any], b: Mapping[str, Any]) -> Pairs:
    """Return the pairs of all results, text before numbers, each by name."""
    found: Pairs = {}
    for key in sorted({*a, *b}, key=lambda name: (not isinstance(a.get(name, b.get(name)), str), name)):
        pair = {side: tree[key] for side, tree in (("a", a), ("b", b)) if key in tree}
        if len(pair) == 2 and all(isinstance(value, int | float) for value in pair.values()):
            pair["difference"] = pair["b"] - pair["a"]
        found[key] = pair
    return found
