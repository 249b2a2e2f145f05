"""Public data, fetched complete and verified or not at all: Wikipedia's dumps, GLUE, SQuAD, models."""

from orchestrator.fetch.datasets import fetch
from orchestrator.fetch.http import Transfer
from orchestrator.fetch.remote_file import Fetched

__all__ = ["Fetched", "Transfer", "fetch"]
