"""Going on from an earlier phase of training: another run's weights and moments, and nothing else of it."""

from __future__ import annotations

from train_jobs.artifacts.commit import verify
from train_jobs.artifacts.start_phase import WEIGHTS, EarlierPhase, find_checkpoint, read_phase
from train_jobs.config import ConflictError, PretrainConfig, SpecError
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.loop.loop import Loop

HASH_DIGITS = 15  # hex digits that fit into an int64


def check_phase(config: PretrainConfig, *, goes_on: bool) -> None:
    """Refuses a run whose earlier phase is not there, before anything is prepared.

    Args:
        goes_on: there is a checkpoint of the run's own, and the earlier phase is not needed any more.

    Raises:
        SpecError: there is no such folder, or no checkpoint in it.
    """
    if config.phase_from is None or goes_on:
        return
    if not config.phase_from.is_dir():
        raise SpecError(
            f"no such folder: {config.phase_from}", facts={"where": "phase_from"}, fix="--set phase_from=FOLDER"
        )
    find_checkpoint(config.phase_from)


def begin_phase(loop: Loop, config: PretrainConfig, store: TokenStore) -> EarlierPhase:
    """Takes weights and moments over from the checkpoint in `phase_from`; for every process, at step 0.

    Raises:
        ConflictError: the checkpoint does not verify, is not the one that rank 0 reads, or is of another vocabulary.
    """
    assert config.phase_from is not None, "asked for a phase"
    phase = read_phase(find_checkpoint(config.phase_from))
    told = int(phase.digest[:HASH_DIGITS], 16)
    if loop.world.from_main(told) != told:
        raise ConflictError(
            f"rank {loop.world.rank} reads another checkpoint than rank 0",
            facts={"where": phase.folder},
            fix="put the earlier phase on a disk that all nodes share",
        )
    if not verify(phase.folder):
        raise ConflictError(
            "the checkpoint of the earlier phase is damaged",
            facts={"where": phase.folder},
            fix=f"give another folder of {phase.folder.parent} as phase_from",
        )
    if phase.vocabulary != store.manifest.vocab_sha256:
        raise ConflictError(
            "the earlier phase was trained with another vocabulary",
            facts={"need": f"SHA-256 {phase.vocabulary}", "have": store.manifest.vocab_sha256, "where": phase.folder},
            fix="--set data.vocabulary=FILE, its vocab.txt",
        )
    loop.begin_phase(Checkpoint(phase.folder, phase.step))
    loop.world.say(
        f"phase      weights and moments of step {phase.step} from {phase.folder}, SHA-256 {phase.files[WEIGHTS][:8]}"
    )
    return phase
