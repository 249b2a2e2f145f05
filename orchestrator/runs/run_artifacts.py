"""The artifacts of a run in MLflow, by `tracking.artifacts`: small ones by default, predictions on request.

No text of the user is among the small ones: their files are those that docs/privacy.md lists as without text. Values of
variables that look like secrets are not copied.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.support.errors import UsageError
from orchestrator.support.redact import HIDDEN, SECRET, is_secret, redact
from train_jobs.artifacts.files import link_or_copy, read_object
from train_jobs.artifacts.lineage import LINEAGE_FILE
from train_jobs.artifacts.tracking.run_files import TABLES

Amount = Literal["none", "light", "all"]
CARD_FILE = "README.md"
SCORED_ROWS = "scored_rows.json"
REPORT_FILE = "report.html"
PICTURES = "pictures"
RESULT = "result.json"
PREDICTIONS = ("predictions", "predictions.*", "submission.zip", SCORED_ROWS)
PARTS = ("", "*/", "*/*/")  # below the outputs: of a run, of a seed or a task, of a seed of a task
MOST_CLASSES = 200  # of a confusion matrix, which has the square of it as cells
DOCUMENTS = ("spec.yaml", "plan.json", "request.json", "config.json")
Report = Callable[[Path, Path | None], None]
"""Writes the report of a run to a file and, given a folder, its figures to that."""


@dataclass(frozen=True)
class RunFiles:
    """The files of a run that MLflow gets as artifacts."""

    amount: Amount
    """How much of them."""
    folder: Path
    """Folder of the run."""
    outputs: Path
    """Folder of its outputs."""
    plan: Mapping[str, Any]
    """Its plan.json."""
    report: Report
    """Writes its report."""
    pictures: bool = True
    """Whether the figures of the report are added as PNG; not for trials, of which a sweep has hundreds."""

    def collect(self, to: Path) -> None:
        """Put the artifacts below a folder at their paths in MLflow; files that exist are linked, not copied."""
        if self.amount == "none":
            return
        for name in DOCUMENTS:
            with suppress(FileNotFoundError):
                (to / name).write_text(public_text(self.folder / name), encoding="utf-8")
        if environment := self.plan.get("environment"):
            (to / "environment.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")
        self._link(self.outputs / LINEAGE_FILE, to / LINEAGE_FILE)
        self._link(self.outputs / "model" / CARD_FILE, to / "model_card.md")
        for name, table in self._tables():
            (to / TABLES).mkdir(exist_ok=True)
            (to / TABLES / f"{name}.json").write_text(json.dumps(table) + "\n", encoding="utf-8")
        try:
            self.report(to / REPORT_FILE, to / PICTURES if self.pictures else None)
        except UsageError:
            pass  # a job without curves has no report
        except Exception as problem:  # a plan of an earlier version: the other files are copied nevertheless
            print(f"warning: no report among the artifacts: {type(problem).__name__}: {problem}", file=sys.stderr)
        if self.amount == "all":
            for part in PARTS:
                for pattern in PREDICTIONS:
                    for found in self.outputs.glob(part + pattern):
                        self._link(found, to / found.relative_to(self.outputs))

    @staticmethod
    def _link(source: Path, target: Path) -> None:
        files = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
        for path in files:
            place = target if path == source else target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():  # several patterns fit predictions/predictions.tsv
                link_or_copy(path.resolve(), place)

    def _tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the content of each table of scores, in the form of MLflow's `log_table`."""
        for prefix, result, scored in self._scored_parts():
            for name, facts in (result.get("sets") or {}).items():
                if classes := facts.get("per_class"):
                    yield f"{prefix}per_class_{name}", per_class_table(classes)
            for name, rows in (scored.get("sets") or {}).items():
                if table := confusion_table(rows):
                    yield f"{prefix}confusion_{name}", table

    def _scored_parts(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield prefix, result and scored rows of the run, or of each task of GLUE."""
        tasks = (read_object(self.outputs / RESULT) or {}).get("tasks") or {"": None}
        for task in tasks:
            folder = self.outputs / task
            result, scored = read_object(folder / RESULT) or {}, read_object(folder / SCORED_ROWS) or {}
            best = [seed for seed in result.get("seeds") or () if seed.get("seed") == result.get("best_seed")]
            yield f"{task}_" if task else "", (best[0] if best else result), scored


def public_text(path: Path) -> str:
    """Return a document without values of variables that look like secrets, and without known formats of secrets.

    Raises:
        FileNotFoundError: it does not exist.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return redact(json.dumps(without_secrets(json.loads(text)), indent=1)) + "\n"
    import yaml

    return redact(yaml.safe_dump(without_secrets(yaml.safe_load(text)), sort_keys=False, allow_unicode=True))


def without_secrets(tree: Any) -> Any:
    """Return a JSON value in which variables with the name of a secret are hidden."""
    if isinstance(tree, list):
        return [without_secrets(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    variables = tree.get("variables") or {}
    hidden = {name: HIDDEN if SECRET.search(name) else value for name, value in variables.items()}
    shown = {key: HIDDEN if is_secret(key) else without_secrets(value) for key, value in tree.items()}
    return {**shown, **({"variables": hidden} if "variables" in tree else {})}


def per_class_table(classes: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the table of scores of each class.

    Args:
        classes: name -> precision, recall, f1 and rows.
    """
    columns = list(dict.fromkeys(name for scores in classes.values() for name in scores))
    data = [[label, *(scores.get(name) for name in columns)] for label, scores in classes.items()]
    return {"columns": ["class", *columns], "data": data}


def confusion_table(rows: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the confusion matrix of a scored set, a row for each label; None for a task without classes.

    Args:
        rows: a set of scored_rows.json.
    """
    names, columns = rows.get("classes") or [], rows.get("columns") or {}
    if not 0 < len(names) <= MOST_CLASSES or not {"label", "prediction"} <= columns.keys():
        return None
    counts = Counter(zip(columns["label"], columns["prediction"], strict=True))
    size = range(len(names))
    data = [[names[label], *(counts[label, predicted] for predicted in size)] for label in size]
    return {"columns": ["label", *(f"predicted {name}" for name in names)], "data": data}
