"""What a preparation needs from outside: text and a vocabulary; and where it puts a store with a name."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.jobs.inputs import At, Needs, text_needs
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.config import PrepareConfig


def preparation_needs(job: PrepareConfig, data: DataFingerprint, remote: str | None) -> Needs:
    """Return the needs of a preparation.

    Args:
        job: what is prepared.
        data: its text by content.
        remote: name of the text at the site.
    """
    needs = text_needs(job.data, data, remote)
    placed = {**needs.placed, **({"store": At("stores", job.store.name)} if job.store is not None else {})}
    return replace(needs, placed=placed, local=(*needs.local, "store"))
