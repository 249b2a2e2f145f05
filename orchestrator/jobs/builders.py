"""Descriptions of jobs with typed arguments, for scripts: `Orchestrator.plan` and `Orchestrator.submit` take them.

The named arguments are those that most jobs need; `settings` has any other key of the spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from orchestrator.support.errors import SpecError

PathText = str | PathLike[str]
PathTexts = PathText | Sequence[PathText]


@dataclass(frozen=True)
class Job:
    """A job to plan: its kind and the values of its spec."""

    kind: str
    """Kind of the job."""
    values: Mapping[str, Any]
    """Dotted key -> value."""


def pretrain(
    data: PathTexts | None = None,
    *,
    column: str | None = None,
    recipe: str | None = None,
    steps: int | None = None,
    start: PathText | None = None,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Job:
    """Return a pretraining.

    Args:
        data: files and folders of text. None: the embedded text.
        column: column of the text, in tables and JSON Lines.
        recipe: recipe: tiny, small, base, large, or a published one.
        steps: optimizer steps.
        start: run, folder or name of the model to start from. None: random weights.
        name: first part of the run's name.
        settings: any other keys, dotted key -> value; they have precedence.

    Raises:
        SpecError: `data` is empty, for example because a pattern matched no file.
    """
    given = {
        "data.text": _sources(data, column, "pretrain"),
        "recipe": recipe,
        "train.steps": steps,
        "init_from": start,
        "name": name,
    }
    return _job("pretrain", given, settings)


def prepare(
    data: PathTexts | None = None,
    *,
    store: PathText | None = None,
    column: str | None = None,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Job:
    """Return a preparation of text.

    Args:
        data: files and folders of text. None: the embedded text.
        store: folder of the new token store. None: in the home folder.
        column: column of the text, in tables and JSON Lines.
        name: first part of the run's name.
        settings: any other keys, dotted key -> value; they have precedence.

    Raises:
        SpecError: `data` is empty, for example because a pattern matched no file.
    """
    given = {"data.text": _sources(data, column, "prepare"), "store": store, "name": name}
    return _job("prepare", given, settings)


def finetune(
    model: PathText,
    data: PathText,
    *,
    task: str | None = None,
    text: str | None = None,
    label: str | None = None,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Job:
    """Return a fine-tuning.

    Args:
        model: run, folder or name of the model to fine-tune.
        data: table of your own, or folder with the files of the task.
        task: task of GLUE, SQuAD or NER, or a YAML file that describes your own. None: your own table.
        text: column of the text, in a table of your own.
        label: column of the label, in a table of your own.
        name: first part of the run's name.
        settings: any other keys, dotted key -> value; they have precedence.
    """
    given = {"init_from": model, "data": data, "task": task, "name": name}
    return _job("finetune", given, {"data.text": text, "data.label": label, **(settings or {})})


def evaluate(model: PathText, data: PathTexts, *, settings: Mapping[str, Any] | None = None) -> Job:
    """Return an evaluation of a fine-tuned model.

    Args:
        model: run or folder of the model.
        data: files with labels.
        settings: any other keys, dotted key -> value; they have precedence.
    """
    return _job("evaluate", {"model": model, "input": _paths(data)}, settings)


def predict(
    model: PathText, data: PathTexts, *, output: PathText | None = None, settings: Mapping[str, Any] | None = None
) -> Job:
    """Return a prediction.

    Args:
        model: run or folder of the model.
        data: files with the rows.
        output: file of the predictions: .jsonl, .tsv, .parquet or .npz. None: in the outputs of the run.
        settings: any other keys, dotted key -> value; they have precedence.
    """
    return _job("predict", {"model": model, "input": _paths(data), "output": output}, settings)


def _job(kind: str, given: Mapping[str, Any], settings: Mapping[str, Any] | None) -> Job:
    values = {key: value for key, value in {**given, **(settings or {})}.items() if value is not None}
    return Job(kind, {key: _text(value) for key, value in values.items()})


def _text(value: Any) -> Any:
    """Return a value with paths as text."""
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, list):
        return [_text(one) for one in value]
    return {key: _text(one) for key, one in value.items()} if isinstance(value, dict) else value


def _sources(data: PathTexts | None, column: str | None, kind: str) -> list[Any] | None:
    """Return sources of text, with their column; None: the embedded text.

    Raises:
        SpecError: `data` is empty, for example because a pattern matched no file.
    """
    if data is None:
        return None
    if not (paths := _paths(data)):
        raise SpecError(
            f"cannot {kind} from no files",
            facts={"where": f"orchestrator.{kind}(): data"},
            fix="check the pattern that selects the files, or leave data out for the embedded text",
        )
    return [({"path": [path], "column": column} if column else path) for path in paths]


def _paths(paths: PathTexts | None) -> list[str]:
    if paths is None:
        return []
    return [str(paths)] if isinstance(paths, str | PathLike) else [str(path) for path in paths]
