"""The packaged code of a run: the installed `train_jobs`, and the user's own folder."""

from orchestrator.snapshot.content import Snapshot, take_snapshot
from orchestrator.snapshot.git import GitFacts

__all__ = ["GitFacts", "Snapshot", "take_snapshot"]
