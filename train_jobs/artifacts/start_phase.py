"""The phase of training that another one goes on from: a checkpoint of an earlier run, read without torch.

Weights and moments are taken over, so the shape of the model, the vocabulary and the kind of optimizer are the earlier
run's. They lie over the recipe and under whatever the user wrote; what the user wrote and they contradict is named, key
by key, before anything is started.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train_jobs.artifacts.commit import FOLDER, read_commit, sizes_match
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.fingerprints import content_hashes
from train_jobs.artifacts.layers import Layer, Merged, merge
from train_jobs.artifacts.lineage import LINEAGE_FILE, ExternalFacts, Lineage, Link, PhaseFacts, read_lineage
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import SHAPE, VOCABULARY, Merge, equal, merge_with_initial_model
from train_jobs.config.base import Config
from train_jobs.config.errors import ConflictError, SpecError

KEY = "phase_from"
STATE, WEIGHTS, MOMENTS = "state.json", "model.safetensors", "optimizer.safetensors"
CHECKPOINTS, MODEL = "checkpoints", "model"  # in the folder of a run's outputs
ROWS = "pad_vocab_to_multiple_of"  # of the section `model`: decides the rows of the embedding table


class EarlierPhase(Config):
    """What a checkpoint says of itself."""

    folder: Path
    """Where it lies."""
    step: int
    """Optimizer steps done."""
    files: dict[str, str]
    """Name -> SHA-256 of each of its files, as its commit has them."""
    model: dict[str, Any]
    """The section `model` of the run's configuration."""
    data: dict[str, Any]
    """The section `data`, without paths."""
    optimizer: str
    """`optimizer.name`."""
    vocabulary: str
    """SHA-256 of the vocab.txt that the run trained with."""

    @property
    def outputs(self) -> Path:
        """Folder of the run's outputs, if the checkpoint still lies in it."""
        return self.folder.parent.parent

    @property
    def vocabulary_file(self) -> Path | None:
        """The vocabulary that the run exported, if it lies there and is the one that it trained with."""
        path = self.outputs / MODEL / VOCABULARY
        return path if path.is_file() and file_sha256(path) == self.vocabulary else None

    @property
    def digest(self) -> str:
        """SHA-256 over all of its files."""
        lines = "".join(f"{name}\0{self.files[name]}\n" for name in sorted(self.files))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def facts(self) -> PhaseFacts:
        """What a lineage says of it."""
        return PhaseFacts(
            step=self.step, optimizer=self.optimizer, weights=self.files[WEIGHTS], moments=self.files[MOMENTS]
        )

    def layer(self) -> Layer:
        """What it decides, to lie over a recipe."""
        data = {key: self.data[key] for key in ("lowercase", "vocab_size")}
        if self.vocabulary_file is not None:
            data["vocabulary"] = str(self.vocabulary_file)
        return Layer(f"{KEY} {self.folder}", {"model": self.shape, "data": data})

    @property
    def shape(self) -> dict[str, Any]:
        """The keys of `model` that the weights decide."""
        return {key: self.model[key] for key in (*SHAPE, ROWS)}


def merge_with_start(below: Sequence[Layer], written: Sequence[Layer]) -> Merge:
    """Merges like `merge`, with what training starts from between presets and what the user wrote.

    That is an earlier phase or an initial model; with both, neither: validation says so. A folder that is not there
    changes nothing: a run that goes on from its checkpoint can do without it.

    Args:
        below: presets, lowest first.
        written: what the user wrote, lowest first.
    """
    merged = merge([*below, *written])
    named = merged.tree.get(KEY)
    if merged.tree.get(INIT_FROM) is not None or not isinstance(named, str | Path) or not Path(named).is_dir():
        return merge_with_initial_model(below, written)
    where = merged.origin((KEY,))
    try:
        phase = read_phase(find_checkpoint(Path(named)))
    except SpecError as failure:
        return Merge(merged, problems=(f"{where}: {KEY}: {failure.message}",))
    layer = phase.layer()
    found = Layer(str(where), {KEY: str(phase.folder)})
    merged = merge([*below, layer, *written, found])
    return Merge(merged, layer.source, tuple(_contradictions(phase, merged)))


def find_checkpoint(folder: Path) -> Path:
    """The newest checkpoint in a folder of outputs or of checkpoints that is whole, or the folder if it is one itself.

    Whole is one with a commit whose files are all there and as long as it says; their content is not read.

    Raises:
        SpecError: there is none.
    """
    if FOLDER.fullmatch(folder.name) and _is_whole(folder):
        return folder.resolve()
    root = folder / CHECKPOINTS if (folder / CHECKPOINTS).is_dir() else folder
    found = [path for path in root.iterdir() if FOLDER.fullmatch(path.name) and _is_whole(path)]
    if not found:
        raise SpecError(
            f"no checkpoint in {folder}", fix="give the folder of a run's outputs, in which a checkpoint has been saved"
        )
    return max(found, key=lambda path: path.name).resolve()


def read_phase(folder: Path) -> EarlierPhase:
    """Reads what a checkpoint says of itself.

    Raises:
        SpecError: it cannot be read, or an older version of this code wrote it.
    """
    try:
        commit, state = read_commit(folder), json.loads((folder / STATE).read_text())
        config = state["config"]
        return EarlierPhase(
            folder=folder,
            step=commit.step,
            files={name: written.sha256 for name, written in commit.files.items()},
            model=config["model"],
            data=config["data"],
            optimizer=config["optimizer"]["name"],
            vocabulary=state["vocabulary"],
        )
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise SpecError(f"cannot read the checkpoint {folder}: {type(problem).__name__}: {problem}") from None


def verify_phase(phase: EarlierPhase, cache: Path | None = None) -> None:
    """Reads every file of a checkpoint.

    Args:
        phase: what it says of itself.
        cache: a JSON file that remembers content hashes, see `train_jobs.artifacts.fingerprints.fingerprint`.

    Raises:
        ConflictError: one is not as it was committed.
    """
    paths = [phase.folder / name for name in phase.files]
    for path, need, have in zip(paths, phase.files.values(), content_hashes(paths, cache), strict=True):
        if need != have:
            raise ConflictError(
                "the checkpoint of the earlier phase is damaged",
                facts={"where": path, "need": f"SHA-256 {need}", "have": have},
                fix=f"put the file back, or give another folder of {phase.folder.parent} as {KEY}",
            )


def phase_lineage(phase: EarlierPhase) -> Lineage:
    """The ancestry of an earlier phase: its run's lineage.json, or one link that says it came from elsewhere.

    Raises:
        ConflictError: the lineage does not verify.
    """
    lineage = read_lineage(phase.outputs / LINEAGE_FILE)
    if lineage is not None:
        return lineage
    facts = ExternalFacts(
        weights=phase.files[WEIGHTS],
        file=WEIGHTS,
        architectures=["BertForPreTraining"],
        vocabulary=phase.vocabulary,
        revision=None,
    )
    return Lineage(links=(Link.make("external", phase.folder.name, facts),))


def _is_whole(folder: Path) -> bool:
    try:
        return sizes_match(folder, read_commit(folder))
    except (OSError, ValueError):
        return False


def _contradictions(phase: EarlierPhase, merged: Merged) -> list[str]:
    """A line for each key that is not as weights, vocabulary and moments need it."""
    model, data, optimizer = (merged.tree.get(name) for name in ("model", "data", "optimizer"))
    if not (isinstance(model, dict) and isinstance(data, dict) and isinstance(optimizer, dict)):
        return []  # not sections at all: validation says so
    needed = {("model", key): value for key, value in phase.shape.items()}
    needed["data", "lowercase"] = phase.data["lowercase"]
    problems = [
        f"{merged.origin(path)}: {'.'.join(path)}: {merged.tree[path[0]][path[1]]}, but the earlier phase has {value}"
        for path, value in needed.items()
        if not equal(merged.tree[path[0]][path[1]], value)
    ]
    vocabulary = data.get("vocabulary")
    if isinstance(vocabulary, str) and Path(vocabulary).is_file() and file_sha256(Path(vocabulary)) != phase.vocabulary:
        where = merged.origin(("data", "vocabulary"))
        problems.append(f"{where}: data.vocabulary: {vocabulary} is not the vocabulary of the earlier phase")
    name = optimizer.get("name")
    if name != phase.optimizer:
        where = merged.origin(("optimizer", "name"))
        problems.append(
            f"{where}: optimizer.name: {name}, but the earlier phase has the moments of {phase.optimizer}; to start"
            f" from its weights alone give {INIT_FROM} instead of {KEY}"
        )
    return problems
