"""The data of a run as MLflow's datasets: what the run's records know of it, without a row of it.

A token store is one dataset, made from its texts. The files of a task are one dataset each, with the context of the
split that they are read as. Digests are cut to MLflow's limit; the tag orchestrator.digest has the whole hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from train_jobs.artifacts.lineage import DataFacts, Lineage, Link, TablesFacts

DIGEST_CHARACTERS = 36  # MLflow's limits (mlflow/utils/validation.py)
NAME_CHARACTERS = 500
SOURCE_CHARACTERS = 60_000  # below MLflow's 65,535
CONTEXT_TAG = "mlflow.data.context"
DIGEST_TAG = "orchestrator.digest"
TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = {TRAIN: ("train",), VALIDATION: ("validation", "valid", "dev"), TEST: ("test",)}
ROWS = "num_rows"  # names in a profile that MLflow's page shows
ELEMENTS = "num_elements"


@dataclass(frozen=True)
class RunDataset:
    """A dataset of a run."""

    name: str
    """Names of its texts or of its file, without folders."""
    sha256: str
    """Hash of its content."""
    context: str
    """train, validation, test, ..."""
    source: Mapping[str, Any]
    """Where it comes from: `uri`, and the files with their sizes and hashes."""
    profile: Mapping[str, Any]
    """Counts: documents, tokens, rows, classes, bytes."""
    columns: Sequence[tuple[str, str]] = field(default=())
    """Name and MLflow's type of each column that is read."""

    def as_input(self) -> Any:
        """Return MLflow's entity of an input."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        columns = [{"name": name, "type": kind, "required": True} for name, kind in self.columns]
        dataset = Dataset(
            name=self.name[:NAME_CHARACTERS],
            digest=self.sha256[:DIGEST_CHARACTERS],
            source_type="local",
            source=self._source_text(),
            schema=json.dumps({"mlflow_colspec": columns}) if columns else None,
            profile=json.dumps(self.profile),
        )
        tags = {CONTEXT_TAG: self.context, DIGEST_TAG: self.sha256}
        return DatasetInput(dataset, [InputTag(name, value) for name, value in tags.items()])

    def _source_text(self) -> str:
        """Return the source as JSON; texts that are too many for MLflow as their number and combined hash."""
        text, sources = json.dumps(self.source), self.source.get("sources", [])
        if len(text) <= SOURCE_CHARACTERS or not sources:
            return text
        sha256 = hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()
        return json.dumps({**self.source, "sources": len(sources), "sources_sha256": sha256})


def datasets_of(lineage: Lineage, rows: Mapping[str, int] | None = None) -> list[RunDataset]:
    """Return the datasets that the head of a lineage read itself, not those of the models that it started from.

    Args:
        lineage: the lineage of a run.
        rows: split -> rows, if the run's plan counted them.
    """
    found: dict[tuple[str, str], RunDataset] = {}
    for link in lineage.parents(lineage.head):
        made = _store(link) if link.kind == "data" else _tables(link, lineage.head, rows or {})
        for one in made if link.kind in ("data", "tables") else ():
            found.setdefault((one.name, one.sha256), one)  # one file may be several splits
    return list(found.values())


def log_datasets(client: Any, run_id: str, datasets: Sequence[RunDataset]) -> int:
    """Log the datasets that a run lacks; return their number.

    Args:
        client: MLflow's client.
        run_id: id of the run.
        datasets: its datasets.
    """
    if not datasets:
        return 0
    inputs = client.get_run(run_id).inputs
    known = {(one.dataset.name, one.dataset.digest) for one in (inputs.dataset_inputs if inputs else ())}
    wanted = [one.as_input() for one in datasets]
    missing = [one for one in wanted if (one.dataset.name, one.dataset.digest) not in known]
    if missing:
        client.log_inputs(run_id, datasets=missing)
    return len(missing)


def _store(link: Link) -> Iterator[RunDataset]:
    """Yield the token store of a pretraining."""
    facts = DataFacts.model_validate({key: link.facts.get(key) for key in DataFacts.model_fields if key in link.facts})
    documents, tokens = sum(facts.documents.values()), sum(facts.tokens.values())
    names = ", ".join(source.name for source in facts.sources) or link.name
    yield RunDataset(
        name=names,
        sha256=facts.content,
        context=TRAIN,
        source={
            "uri": facts.sources[0].name if facts.sources else link.name,
            "token_store": facts.store,
            "sources": [source.model_dump() for source in facts.sources],
            "license": facts.license,
        },
        profile={
            ROWS: documents,
            ELEMENTS: tokens,
            **{f"{split}_documents": count for split, count in facts.documents.items()},
            **{f"{split}_tokens": count for split, count in facts.tokens.items()},
            "bytes": sum(source.total_bytes for source in facts.sources),
            "vocab_size": facts.vocab_size,
            "lowercase": facts.lowercase,
        },
        columns=[("text", "string")],
    )


def _tables(link: Link, run: Link, rows: Mapping[str, int]) -> Iterator[RunDataset]:
    """Yield the files of a fine-tuning's task."""
    facts = TablesFacts.model_validate(link.facts)
    data, labels = run.facts.get("config", {}).get("data", {}), run.facts.get("labels") or []
    columns = [(data[key], "string") for key in ("text", "pair") if isinstance(data.get(key), str)]
    if isinstance(data.get("label"), str):
        columns.append((data["label"], "double" if data.get("regression") else "string"))
    for source in facts.sources:
        context = _split(source.name, data)
        yield RunDataset(
            name=source.name,
            sha256=source.sha256,
            context=context,
            source={"uri": source.name, "files": source.files, "task": facts.task},
            profile={
                **({ROWS: rows[context]} if context in rows else {}),
                "bytes": source.total_bytes,
                **({"classes": len(labels), "labels": labels} if labels else {}),
            },
            columns=columns,
        )


def _split(name: str, data: Mapping[str, Any]) -> str:
    """Return the split that a file is read as: by its key in the configuration, else by its name."""
    named = (split for split in SPLITS if data.get(split) == name)
    words = (split for split, starts in SPLITS.items() if name.lower().startswith(starts))
    return next(named, None) or next(words, TRAIN)
