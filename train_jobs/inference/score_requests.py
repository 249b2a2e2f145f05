"""Requests of an endpoint: check them, and predict the texts of several requests together.

Request: {"inputs": [...], "top": 5}. An input is a text, {"text": ..., "pair": ...} for a pair of texts, or
{"question": ..., "context": ...} for a question. Response: {"outputs": [...]}, for each input the record that
`train_jobs.predict` writes; for a language model a list of its masks, each a list of {"token", "probability"}, most
likely first.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_jobs.inference.predictor import Predictor, Record
from train_jobs.readers.tables import RowTable

MAX_INPUTS, MAX_TOP, DEFAULT_TOP_K = 64, 100, 5
MAX_SEQUENCES = 128  # of a request: a long context is split into windows, each a sequence
PAIR = "pair"


@dataclass(frozen=True)
class ScoreRequest:
    """A valid request."""

    rows: list[dict[str, str]]
    """Column -> text, a row for each input."""
    columns: tuple[str, ...]
    """Columns of text that the predictor reads."""
    top: int
    """Number of labels or words to return for each input."""

    @property
    def paired(self) -> bool:
        """Whether the inputs are pairs of texts."""
        return PAIR in self.columns


def read_request(raw: str | bytes, task: Predictor) -> ScoreRequest:
    """Return a request that the predictor can answer.

    Args:
        raw: JSON of the request.
        task: predictor of the model.

    Raises:
        ValueError: it is not a valid request; the message contains nothing of its texts.
    """
    try:
        document = json.loads(raw)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"not JSON: {problem.msg} at character {problem.pos}") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON: invalid UTF-8") from None
    if not isinstance(document, dict) or "inputs" not in document:
        raise ValueError("'inputs' is missing")
    inputs, top = document["inputs"], document.get("top", DEFAULT_TOP_K)
    if not isinstance(inputs, list):
        raise ValueError("inputs is not a list")
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise ValueError(f"{len(inputs)} inputs, need 1 to {MAX_INPUTS}")
    if not isinstance(top, int) or isinstance(top, bool) or not 0 < top <= MAX_TOP:
        raise ValueError(f"invalid top, need 1 to {MAX_TOP}")
    paired = any(isinstance(one, dict) and PAIR in one for one in inputs)
    columns = tuple(_settings(task, paired=paired, top=top).text_columns)
    return ScoreRequest([_row(number, one, columns) for number, one in enumerate(inputs)], columns, top)


def predict_requests(task: Predictor, requests: Sequence[ScoreRequest]) -> list[list[Any]]:
    """Return the outputs of each request; requests with the same settings are predicted together.

    Args:
        task: predictor of the model.
        requests: valid requests.

    Raises:
        OutOfMemoryError: a single sequence does not fit.
        TooManySequencesError: the texts need more sequences than `limited` allows.
    """
    outputs: list[list[Any]] = [[] for _ in requests]
    groups: dict[tuple[bool, int], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault((request.paired, request.top), []).append(number)
    for (paired, top), numbers in groups.items():
        rows = [row for number in numbers for row in requests[number].rows]
        records = iter(_predict_rows(_settings(task, paired=paired, top=top), rows))
        for number in numbers:
            outputs[number] = [next(records) for _ in requests[number].rows]
    return outputs


def limited(task: Predictor, beat: Callable[[], None] = lambda: None) -> Predictor:
    """Return a predictor that computes at most `MAX_SEQUENCES` sequences at a time.

    Args:
        task: predictor of the model.
        beat: called before and after each batch of sequences; an error that it raises ends the prediction.
    """
    task = copy.copy(task)
    task.forward = task.forward.limited(MAX_SEQUENCES, beat)
    return task


def _settings(task: Predictor, *, paired: bool, top: int) -> Predictor:
    # a copy per request: requests have different settings, and may be served by several threads
    task = copy.copy(task)
    data = task.config.data.model_copy(update={"pair": PAIR if paired else None})
    task.config = task.config.model_copy(update={"top_k": top, "data": data})
    return task


def _predict_rows(task: Predictor, rows: Sequence[dict[str, str]]) -> list[Any]:
    columns = {name: [row[name] for row in rows] for name in task.text_columns}
    found = task.predict(RowTable(Path("inputs"), columns, list(range(1, len(rows) + 1))), 0).records
    return [_plain(record) for record in found]


def _row(number: int, one: Any, columns: Sequence[str]) -> dict[str, str]:
    row = {columns[0]: one} if isinstance(one, str) and len(columns) == 1 else one
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in columns):
        need = "a text" if len(columns) == 1 else f"of the form {dict.fromkeys(columns, '...')}"
        raise ValueError(f"inputs[{number}] is not {need}")
    try:
        [row[name].encode() for name in columns]
    except UnicodeEncodeError:  # "\ud800" is valid JSON but no character
        raise ValueError(f"inputs[{number}] contains half of a surrogate pair") from None
    return row


def _plain(record: Record) -> Any:
    """Return a record as JSON; of a language model only its masks, the format of the first version."""
    found = {name: getattr(value, "tolist", lambda same=value: same)() for name, value in record.items()}
    return found["masks"] if found.keys() == {"masks"} else found
