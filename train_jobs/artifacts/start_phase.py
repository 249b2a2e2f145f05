"""The earlier phase that training starts from: a checkpoint of another run, read without torch.

Training continues with its weights and moments, so the earlier run determines the shape of the model, the vocabulary
and the optimizer. They override the recipe. Values of the user that contradict them are reported, key by key, before
anything starts.
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
from train_jobs.artifacts.layers import ConfigLayer, Merged, merge
from train_jobs.artifacts.lineage import LINEAGE_FILE, ExternalFacts, Lineage, Link, PhaseFacts, read_lineage
from train_jobs.artifacts.model_tokenizer import VOCABULARY
from train_jobs.artifacts.regular_files import read_bytes
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import SHAPE, Merge, contradictions, merge_with_initial_model
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.config import Config, ConflictError, SpecError

KEY = "phase_from"
STATE, WEIGHTS, MOMENTS = "state.json", "model.safetensors", "optimizer.safetensors"
CHECKPOINTS, MODEL = "checkpoints", "model"  # in the folder of a run's outputs
ROWS = "pad_vocab_to_multiple_of"  # key of the section `model` that determines the rows of the embedding table


class EarlierPhase(Config):
    """Description of a checkpoint of an earlier run."""

    folder: Path
    """Path of the checkpoint."""
    step: int
    """Optimizer steps done."""
    files: dict[str, str]
    """Name -> SHA-256 of each file, from the commit."""
    model: dict[str, Any]
    """Section `model` of the run's configuration."""
    data: dict[str, Any]
    """Section `data` of the run's configuration, without paths."""
    optimizer: str
    """`optimizer.name` of the run's configuration."""
    vocabulary: str
    """SHA-256 of the vocab.txt that the run trained with."""

    @property
    def outputs(self) -> Path:
        """Folder of the run's outputs, unless the checkpoint was moved."""
        return self.folder.parent.parent

    @property
    def vocabulary_file(self) -> Path | None:
        """Path of the exported vocabulary; None if it is missing or not the one that the run trained with."""
        path = self.outputs / MODEL / VOCABULARY
        return path if path.is_file() and file_sha256(path) == self.vocabulary else None

    @property
    def digest(self) -> str:
        """SHA-256 over names and hashes of all files."""
        lines = "".join(f"{name}\0{self.files[name]}\n" for name in sorted(self.files))
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def facts(self) -> PhaseFacts:
        """Facts for the lineage of a run that starts from this phase."""
        return PhaseFacts(
            step=self.step, optimizer=self.optimizer, weights=self.files[WEIGHTS], moments=self.files[MOMENTS]
        )

    def layer(self) -> ConfigLayer:
        """Return the values that the phase determines; they override a recipe."""
        data: dict[str, Any] = {"vocab_size": self.data["vocab_size"], **self.rule._asdict()}
        if self.vocabulary_file is not None:
            data["vocabulary"] = str(self.vocabulary_file)
        return ConfigLayer(f"{KEY} {self.folder}", {"model": self.shape, "data": data})

    @property
    def rule(self) -> TextRule:
        """Rule for words of the run; runs of older versions stripped accents if and only if they lower-cased."""
        lowercase = self.data["lowercase"]
        return TextRule(lowercase, self.data.get("strip_accents", lowercase), self.data.get("split_unspaced", False))

    @property
    def shape(self) -> dict[str, Any]:
        """Keys of `model` that the weights determine."""
        return {key: self.model[key] for key in (*SHAPE, ROWS)}


def merge_with_start(below: Sequence[ConfigLayer], written: Sequence[ConfigLayer]) -> Merge:
    """Merge layers; values of an earlier phase or initial model override presets, and the user's override both.

    With both a phase and a model, the phase is not read, and validation reports the conflict. A missing folder is
    ignored, since a run that resumes from its checkpoint does not need it.

    Args:
        below: presets, the base first.
        written: layers of the user; later ones override earlier ones.
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
    merged = merge([*below, layer, *written, ConfigLayer(str(where), {KEY: str(phase.folder)})])
    return Merge(merged, layer.source, tuple(_contradictions(phase, merged)))


def find_checkpoint(folder: Path) -> Path:
    """Return the newest complete checkpoint in a folder of outputs or checkpoints, or the folder itself if it is one.

    A complete checkpoint has a commit and all files with the sizes in it; their content is not read.

    Args:
        folder: an existing folder.

    Raises:
        SpecError: no checkpoint is complete.
    """
    if FOLDER.fullmatch(folder.name) and _is_complete(folder):
        return folder.resolve()
    root = folder / CHECKPOINTS if (folder / CHECKPOINTS).is_dir() else folder
    found = [path for path in root.iterdir() if FOLDER.fullmatch(path.name) and _is_complete(path)]
    if not found:
        raise SpecError(f"no checkpoint in {folder}", fix="give the output folder of a run that has saved a checkpoint")
    return max(found, key=lambda path: path.name).resolve()


def read_phase(folder: Path) -> EarlierPhase:
    """Read the description of a checkpoint.

    Raises:
        SpecError: the checkpoint cannot be read, or an older version of this code wrote it.
    """
    try:
        commit, state = read_commit(folder), json.loads(read_bytes(folder / STATE))
        config = state["config"]
        phase = EarlierPhase(
            folder=folder,
            step=commit.step,
            files={name: written.sha256 for name, written in commit.files.items()},
            model=config["model"],
            data=config["data"],
            optimizer=config["optimizer"]["name"],
            vocabulary=state["vocabulary"],
        )
        phase.layer()  # every key that it needs exists
        return phase
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise SpecError(f"cannot read the checkpoint {folder}: {type(problem).__name__}: {problem}") from None


def verify_phase(phase: EarlierPhase, cache: Path | None = None) -> None:
    """Verify every file of a checkpoint.

    Args:
        phase: description of the checkpoint.
        cache: JSON file of content hashes, see `fingerprints.content_hashes`. None: no cache.

    Raises:
        ConflictError: the content of a file does not match its commit.
    """
    paths = [phase.folder / name for name in phase.files]
    for path, need, have in zip(paths, phase.files.values(), content_hashes(paths, cache), strict=True):
        if need != have:
            raise ConflictError(
                "the checkpoint of the earlier phase is damaged",
                facts={"where": path, "need": f"SHA-256 {need}", "have": have},
                fix=f"restore the file, or give another folder of {phase.folder.parent} as {KEY}",
            )


def phase_lineage(phase: EarlierPhase) -> Lineage:
    """Return the ancestry of an earlier phase: its run's lineage.json, or one link for a model from elsewhere.

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


def _is_complete(folder: Path) -> bool:
    try:
        return sizes_match(folder, read_commit(folder))
    except (OSError, ValueError):
        return False


def _contradictions(phase: EarlierPhase, merged: Merged) -> list[str]:
    """Return one line per value that contradicts weights, vocabulary or moments of the phase."""
    model, data, optimizer = (merged.tree.get(name) for name in ("model", "data", "optimizer"))
    if not (isinstance(model, dict) and isinstance(data, dict) and isinstance(optimizer, dict)):
        return []  # not sections at all: validation reports it
    needed: dict[tuple[str, str], Any] = {("model", key): value for key, value in phase.shape.items()}
    needed |= {("data", key): value for key, value in phase.rule._asdict().items()}
    problems = contradictions(merged, needed, phase.vocabulary, "earlier phase")
    name = optimizer.get("name")
    if name != phase.optimizer:
        where = merged.origin(("optimizer", "name"))
        problems.append(
            f"{where}: optimizer.name: {name}, but the earlier phase has the moments of {phase.optimizer}; to use only"
            f" its weights, give {INIT_FROM} instead of {KEY}"
        )
    return problems
