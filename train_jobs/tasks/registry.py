"""The kinds of tasks behind one protocol: a job reads one, makes its model, trains it with each seed and concludes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tokenizers import Tokenizer

from train_jobs.config import ModelConfig
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.tasks import SENTENCES, SPANS, WORDS, TaskKind, task_kind
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.task_heads import Finetuned
from train_jobs.tasks.entities.tagging import Words
from train_jobs.tasks.finetuning import Finetuning
from train_jobs.tasks.sentences.classification import Texts
from train_jobs.tasks.squad.questions import Questions


class TokenizedTask(Protocol):
    """A task with all of its rows, as tokens."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of what is predicted, in the order of their ids; none of a number or a span."""
        ...

    @property
    def sha256(self) -> str:
        """Of what training sees."""
        ...

    @property
    def notes(self) -> list[str]:
        """What the user should know of the files."""
        ...

    def describe(self) -> list[str]:
        """Task and rows, in a line each."""
        ...

    def model(self, shape: ModelConfig, rows: int) -> Finetuned:
        """A model with its head, as it is made.

        Args:
            rows: of the embedding table.
        """
        ...

    def training(self, model: Finetuned, *, seed: int, world: World) -> Finetuning:
        """What the engine trains, once with each seed."""
        ...


READERS: Mapping[TaskKind, Callable[[FinetuneConfig, Tokenizer], TokenizedTask]] = {
    SENTENCES: Texts.read,
    SPANS: Questions.read,
    WORDS: Words.read,
}
"""Kind of task -> function that reads its rows."""


def read_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TokenizedTask:
    """Read and encode everything that training, evaluation and prediction need.

    Raises:
        DataError: a file is missing, or has rows that cannot be used: each with its line.
    """
    return READERS[task_kind(config.task) or SENTENCES](config, tokenizer)
