"""The lineage of a fine-tuning: model and files at its start, scores and weights at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_jobs.artifacts.files import file_sha256, write_text
from train_jobs.artifacts.lineage import (
    LINEAGE_FILE,
    FinetuneFacts,
    Lineage,
    Link,
    Source,
    TablesFacts,
    read_lineage,
)
from train_jobs.artifacts.start_model import initial_lineage
from train_jobs.artifacts.task_files import task_files
from train_jobs.config import FinetuneConfig
from train_jobs.engine.runtime import storage
from train_jobs.records.commands import finetuning_commands
from train_jobs.records.finetuning_card import finetuning_card
from train_jobs.records.pretraining_lineage import (
    TrainingStart,
    end_facts,
    resumed_lineage,
    start_facts,
    with_facts,
    write,
)

MODEL = "model"


def begin(config: FinetuneConfig, start: TrainingStart, *, rows: str, labels: Sequence[str], seed: int) -> Lineage:
    """Write OUTPUT/lineage.json for a training that starts or resumes; call it on the main process.

    Args:
        config: the configuration.
        start: this start of the job.
        rows: SHA-256 of the encoded training rows.
        labels: names of classes or tags.
        seed: seed of this run.

    Raises:
        ConflictError: the lineage of the initial model does not verify.
        StorageError: the file cannot be written.
    """
    lineage = resumed_lineage(start, FinetuneFacts)
    if lineage is None:
        before, data = initial_lineage(config.init_from), tables_link(config, rows)
        named = _named(config, before.head.name)
        facts = FinetuneFacts(
            **start_facts(start),
            config=named,
            commands=finetuning_commands(named, start.attempt),
            task=config.task,
            labels=list(labels),
            seed=seed,
        )
        link = Link.make("finetune", start.run_name, facts, parents=[data, before.head])
        lineage = before.followed_by(data, link)
    write(lineage, start.output)
    return lineage


def describe(begun: Lineage, folder: Path, *, steps: int, best_step: int, metrics: Mapping[str, float]) -> None:
    """Write the complete lineage and the model card into the folder of a fine-tuned model.

    Args:
        begun: result of `begin`.
        folder: folder of the exported weights.
        steps: optimizer steps.
        best_step: step of the exported weights.
        metrics: scores of these weights on the dev set.

    Raises:
        StorageError: a file cannot be written.
    """
    complete = with_facts(begun, **end_facts(folder, steps, metrics), best_step=best_step)
    write(complete, folder, card=finetuning_card(complete))


def describe_best(output: Path, found: Mapping[str, Any]) -> None:
    """Add the figures of all seeds to the lineage and the card of the best model, and copy the lineage to the run.

    Args:
        output: folder of the run, with the model of the best seed.
        found: figures of all seeds, from `train_jobs.tasks.sentences.glue.summarise_seeds`.

    Raises:
        StorageError: a file cannot be written.
    """
    folder = output / MODEL
    lineage = read_lineage(folder / LINEAGE_FILE)
    assert lineage is not None, "each seed wrote one with its model"
    complete = with_facts(lineage, over_seeds=found["metrics"], seeds=len(found["seeds"]), collapsed=found["collapsed"])
    write(complete, folder, card=finetuning_card(complete))
    copy_model_lineage(output)


def copy_model_lineage(output: Path) -> None:
    """Copy the lineage of the exported model to the folder of the run.

    Raises:
        StorageError: it cannot be written.
    """
    # A copy, since the run's file has the lineage of its start only, and the model's has the final metrics and weights.
    with storage.storage_errors(output, "the lineage"):
        write_text(output / LINEAGE_FILE, (output / MODEL / LINEAGE_FILE).read_text(encoding="utf-8"))


def tables_link(config: FinetuneConfig, rows: str) -> Link:
    """Return the link of a task's files, each with its bare name.

    Args:
        rows: hash of the rows that training sees.
    """
    sources = [
        Source(name=file.name, files=1, total_bytes=file.path.stat().st_size, sha256=file_sha256(file.path))
        for file in task_files(config)
    ]
    dataset = Path(config.data.dataset).name if config.data.dataset and not sources else None
    return Link.make("tables", dataset or config.task, TablesFacts(task=config.task, sources=sources, rows=rows))


def _named(config: FinetuneConfig, model: str) -> dict[str, Any]:
    """Return the configuration with names in place of paths."""
    tree = config.model_dump(mode="json")
    # Bare names: a card is published, and paths would reveal user names and machines.
    paths = {key: value for key, value in config.data.model_dump().items() if isinstance(value, Path)}
    tree["data"] |= {key: path.resolve().name for key, path in paths.items()}
    if config.data.dataset is not None and Path(config.data.dataset).is_dir():
        tree["data"]["dataset"] = Path(config.data.dataset).name
    return {**tree, "init_from": model}
