"""The code that goes with a run: the installed `train_jobs`, and the user's own folder beside it."""

from orchestrator.snapshot.content import Snapshot, take_snapshot
from orchestrator.snapshot.entries import LeftOut, SnapshotFile
from orchestrator.snapshot.git import GitFacts

__all__ = ["GitFacts", "LeftOut", "Snapshot", "SnapshotFile", "take_snapshot"]
