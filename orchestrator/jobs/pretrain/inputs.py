"""What a pretraining needs from outside: text or a token store, a vocabulary, and what it starts from."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from orchestrator.jobs.inputs import DATA, START, At, Content, JobInput, Needs, model_input, text_needs
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.lineage import LINEAGE_FILE, Link
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import VOCABULARY
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.artifacts.start_phase import MODEL, EarlierPhase
from train_jobs.artifacts.store_manifest import MANIFEST_FILE, store_folder
from train_jobs.config import PretrainConfig


def pretraining_needs(
    job: PretrainConfig, data: DataFingerprint, remote: str | None, start: Link | EarlierPhase | None
) -> Needs:
    """Return the needs of a pretraining.

    Args:
        job: what is trained.
        data: its text by content.
        remote: name of the text at the site.
        start: the model or the earlier phase that it starts from.
    """
    store = store_folder(job.data, job.data.store)
    needs = text_needs(job.data, data, remote)
    inputs, placed = list(needs.inputs), dict(needs.placed)
    if store is not None and remote is None:
        manifest = file_sha256(store / MANIFEST_FILE)  # which has the hash of every file
        inputs = [one for one in inputs if one.name != DATA]
        inputs.insert(0, JobInput(DATA, "store", manifest, list_files=lambda: _store_files(store)))
        placed = {"data.store": At(DATA), **{key: value for key, value in placed.items() if key != "data.text"}}
    if isinstance(start, EarlierPhase):
        facts = f"{start.facts.step}\0{start.facts.weights}\0{start.facts.moments}"
        digest = hashlib.sha256(facts.encode()).hexdigest()
        inputs.append(JobInput(START, "start", digest, list_files=lambda: _phase_files(start.folder)))
        placed[PHASE_FROM] = At(START, f"checkpoints/step-{start.facts.step:08d}")
    elif job.init_from is not None:
        inputs.append(model_input(Path(job.init_from), (start.weights or "") if start else ""))
        placed[INIT_FROM] = At(START)
    local = (*needs.local, "data.store", INIT_FROM, PHASE_FROM)
    return replace(needs, inputs=tuple(inputs), placed=placed, local=local)


def _store_files(store: Path) -> dict[str, Content]:
    return {path.relative_to(store).as_posix(): path for path in sorted(store.rglob("*")) if path.is_file()}


def _phase_files(checkpoint: Path) -> dict[str, Content]:
    """The checkpoint of an earlier phase, its vocabulary and its lineage, as they lie in the run's outputs."""
    outputs = checkpoint.parent.parent
    found: dict[str, Content] = {
        f"checkpoints/{checkpoint.name}/{path.name}": path for path in sorted(checkpoint.iterdir()) if path.is_file()
    }
    beside = {name: outputs / name for name in (f"{MODEL}/{VOCABULARY}", LINEAGE_FILE)}
    return {**found, **{name: path for name, path in beside.items() if path.is_file()}}
