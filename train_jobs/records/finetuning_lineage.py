"""The lineage of a fine-tuning: model and files go in when it starts, what came of it is written when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from train_jobs.artifacts.files import file_sha256, write_text
from train_jobs.artifacts.lineage import (
    LINEAGE_FILE,
    Attempt,
    FinetuneFacts,
    Lineage,
    Link,
    Source,
    TablesFacts,
    read_lineage,
)
from train_jobs.artifacts.start_model import initial_lineage
from train_jobs.artifacts.task_files import task_files
from train_jobs.config import UserError
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.engine.runtime import storage
from train_jobs.records.commands import tuning_commands
from train_jobs.records.finetuning_card import tuned_card
from train_jobs.records.markdown import CARD_FILE
from train_jobs.records.pretraining_lineage import begun_facts, ended_facts, run_name, with_facts, write

MODEL = "model"


def begin(
    config: FinetuneConfig,
    *,
    rows: str,
    labels: Sequence[str],
    seed: int,
    attempt: Attempt,
    model: torch.nn.Module,
    absent: Sequence[str],
    output: Path,
    tags: Mapping[str, str],
) -> Lineage:
    """Writes OUTPUT/lineage.json for a training that starts, or goes on; for the main process.

    Args:
        rows: hash of what training sees.
        labels: names of what is predicted.
        seed: of this training.
        absent: tensors that the initial model did not hold.
        tags: of the run, see `train_jobs.records.pretraining_lineage.read_tags`.

    Raises:
        ConflictError: the lineage of the initial model does not verify.
        StorageError: it cannot be written.
    """
    lineage = _continued(output, attempt) if attempt.step else None
    if lineage is None:
        before, data = initial_lineage(config.init_from), tables_link(config, rows)
        named = _named(config, before.head.name)
        facts = FinetuneFacts(
            **begun_facts(tags, model, absent, attempt),
            config=named,
            commands=tuning_commands(named, attempt),
            task=config.task,
            labels=list(labels),
            seed=seed,
        )
        link = Link.make("finetune", run_name(tags, output), facts, parents=[data, before.head])
        lineage = before.followed_by(data, link)
    write(lineage, output)
    return lineage


def describe(begun: Lineage, folder: Path, *, steps: int, best_step: int, metrics: Mapping[str, float]) -> None:
    """Writes what goes with a fine-tuned model into its folder: the lineage, now complete, and the model card.

    Args:
        begun: the lineage as `begin` left it.
        folder: holds the exported weights.
        steps: optimizer steps done.
        best_step: those that the exported weights are of.
        metrics: of these weights on the dev set.

    Raises:
        StorageError: they cannot be written.
    """
    _write_both(with_facts(begun, **ended_facts(folder, steps, metrics), best_step=best_step), folder)


def describe_best(output: Path, found: Mapping[str, Any]) -> None:
    """Tells of all seeds in the lineage and the card of the best model of them, and puts the former beside it.

    Args:
        output: of the run; its model is that of the best seed.
        found: what all seeds come to, as `train_jobs.tasks.sentences.score_table.together` has it.

    Raises:
        StorageError: they cannot be written.
    """
    folder = output / MODEL
    lineage = read_lineage(folder / LINEAGE_FILE)
    assert lineage is not None, "each seed leaves one with its model"
    told = {"over_seeds": found["metrics"], "seeds": len(found["seeds"]), "collapsed": found["collapsed"]}
    _write_both(with_facts(lineage, **told), folder)
    copy_of_model(output)


def copy_of_model(output: Path) -> None:
    """Puts the lineage of the exported model where a run's is looked for.

    Raises:
        StorageError: it cannot be written.
    """
    with storage.storage_errors(output, "the lineage"):
        write_text(output / LINEAGE_FILE, (output / MODEL / LINEAGE_FILE).read_text(encoding="utf-8"))


def tables_link(config: FinetuneConfig, rows: str) -> Link:
    """The files of a task, each by its own name.

    Args:
        rows: hash of what training sees.
    """
    sources = [
        Source(name=file.name, files=1, total_bytes=file.path.stat().st_size, sha256=file_sha256(file.path))
        for file in task_files(config)
    ]
    dataset = Path(config.data.dataset).name if config.data.dataset and not sources else None
    return Link.make("tables", dataset or config.task, TablesFacts(task=config.task, sources=sources, rows=rows))


def _write_both(lineage: Lineage, folder: Path) -> None:
    write(lineage, folder)
    with storage.storage_errors(folder, "the model card"):
        write_text(folder / CARD_FILE, tuned_card(lineage))


def _continued(output: Path, attempt: Attempt) -> Lineage | None:
    """The lineage that the training began with, and one more attempt; None, and a warning, where it is lost."""
    try:
        lineage = read_lineage(output / LINEAGE_FILE)
        if lineage is None:
            return None
        facts = FinetuneFacts.model_validate(lineage.head.facts)
    except (UserError, ValidationError) as problem:
        print(f"warning: the lineage of this run begins anew: {problem}", flush=True)
        return None
    return with_facts(lineage, attempts=[*facts.attempts, attempt], ended=None, weights=None, metrics=None)


def _named(config: FinetuneConfig, model: str) -> dict[str, Any]:
    """The configuration with names in place of paths."""
    tree = config.model_dump(mode="json")
    paths = {key: value for key, value in config.data.model_dump().items() if isinstance(value, Path)}
    tree["data"] |= {key: path.resolve().name for key, path in paths.items()}
    if config.data.dataset is not None and Path(config.data.dataset).is_dir():
        tree["data"]["dataset"] = Path(config.data.dataset).name
    return {**tree, "init_from": model}
