"""The rows behind the scores of a run, as scored_rows.json: what a test between two runs needs, and no text.

    {"version": 1, "sets": {"dev": {
        "classes": ["ham", "spam"],
        "metrics": {"accuracy": {"kind": "accuracy"}, "f1": {"kind": "f1", "positive": 1}},
        "columns": {"label": [0, 1, 1], "prediction": [0, 1, 0]},
        "rows": ["0f3a5c7e9b1d2f46", ...]}}}

A hash of its texts and its label identifies a row, so the order of the file does not matter. A text cannot be read from
its hash, but a person who has the text can check whether it is among the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, TypeAdapter, ValidationError, model_validator

from train_jobs.config.fields import Config
from train_jobs.evaluation.resampling import Definition, Floats, bootstrap, columns_of, statistic_of

SCORED_ROWS = "scored_rows.json"
SCORED_SET = "input"  # the name of the one set of an evaluation
VERSION = 1
ID_DIGITS = 16  # hexadecimal: among 100,000 rows, two different ones are equal with a probability of 3e-10


@dataclass(frozen=True)
class ScoredRows:
    """Rows of a scored set: the values that its scores are computed from."""

    columns: Mapping[str, npt.ArrayLike]
    """Name -> value of each row: label and prediction, or counts such as the right entities of a sentence."""
    metrics: Mapping[str, Definition]
    """Name of a metric -> its definition over the columns."""
    rows: Sequence[str] = ()
    """Identity of each row, see `row_ids`; empty: not known."""
    classes: Sequence[str] = ()
    """Names of the classes that labels and predictions are numbers of; empty: they are no classes."""

    def resamples(self) -> dict[str, Floats]:
        """Return each metric for resamples of the rows, see `resampling.bootstrap`."""
        return bootstrap(self.columns, {name: statistic_of(one) for name, one in self.metrics.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        columns = {name: [_short(value) for value in values] for name, values in self._lists().items()}
        return {
            "classes": list(self.classes),
            "metrics": {name: dict(one) for name, one in self.metrics.items()},
            "columns": columns,
            "rows": list(self.rows),
        }

    def _lists(self) -> dict[str, list[float]]:
        return {name: np.asarray(values, np.float64).tolist() for name, values in self.columns.items()}


class _SavedRows(Config):
    columns: dict[str, list[float]]
    metrics: dict[str, dict[str, Any]]
    rows: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    model_config = ConfigDict(allow_inf_nan=True)  # a score may read predictions of a model that diverged

    @model_validator(mode="after")
    def _consistent(self) -> _SavedRows:
        lengths = {len(values) for values in self.columns.values()} | ({len(self.rows)} if self.rows else set())
        if len(lengths) > 1:
            raise ValueError("columns of different lengths")
        for name, definition in self.metrics.items():
            try:
                statistic_of(definition)
                known = set(columns_of(definition)) <= self.columns.keys()
            except (LookupError, TypeError, ValueError):
                known = False
            if not known:
                raise ValueError(f"unknown metric {name}")
        return self


def row_ids(*parts: Sequence[str]) -> list[str]:
    """Return the identity of each row: a hash of its texts and its label.

    Args:
        parts: texts of all rows, texts of their pairs, ..., and their labels.
    """
    # JSON separates the parts unambiguously, whatever characters they contain.
    texts = (json.dumps(row).encode() for row in zip(*parts, strict=True))
    return [hashlib.sha256(text).hexdigest()[:ID_DIGITS] for text in texts]


def sets_identity(sets: Mapping[str, Sequence[str]], classes: Sequence[str]) -> dict[str, str]:
    """Return hashes by which a later start recognises the rows of a task: one for each set, and one for the classes.

    Args:
        sets: train, dev and test -> identities of their rows, in their order.
        classes: names of the classes or tags in the order of their ids.
    """
    known = {"test": (), **sets, "classes": classes}  # a test that was removed is a difference, too
    texts = {name: json.dumps(list(some)).encode() for name, some in known.items()}
    return {name: hashlib.sha256(text).hexdigest()[:ID_DIGITS] for name, text in texts.items()}


def example_ids(
    texts: Sequence[str], pairs: Sequence[str] | None, labels: Sequence[float], classes: Sequence[str]
) -> list[str]:
    """Return the identity of each labelled text or pair of texts.

    Args:
        texts: first texts.
        pairs: second texts; None: one text per row.
        labels: ids of classes, or numbers.
        classes: names of the classes in the order of their ids; empty: labels are numbers.
    """
    named = [classes[int(label)] if classes else repr(float(label)) for label in labels]
    return row_ids(texts, *([] if pairs is None else [pairs]), named)


def scored_rows_text(sets: Mapping[str, ScoredRows]) -> str:
    """Return the content of scored_rows.json.

    Args:
        sets: name of a scored set, such as dev or test -> its rows.
    """
    document = {"version": VERSION, "sets": {name: one.as_dict() for name, one in sets.items()}}
    return json.dumps(document, separators=(",", ":"))


def read_scored_rows(text: bytes) -> dict[str, ScoredRows]:
    """Return the sets of a scored_rows.json.

    Raises:
        ValueError: it is damaged, or of another version.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        document = None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"{SCORED_ROWS} is not of version {VERSION}")
    try:
        sets = TypeAdapter(dict[str, _SavedRows]).validate_python(document.get("sets"))
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{SCORED_ROWS} is damaged: {where}: {first['msg']}") from None
    return {name: ScoredRows(one.columns, one.metrics, one.rows, one.classes) for name, one in sets.items()}


def _short(value: float) -> float:
    """Return a whole number without its fraction, which JSON would write."""
    return int(value) if value.is_integer() else value
