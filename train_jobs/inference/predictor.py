"""Base class of all kinds of prediction: columns to read, records of rows, and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from train_jobs.config import PredictConfig
from train_jobs.config.finetune import require_length
from train_jobs.evaluation.scored_rows import ScoredRows
from train_jobs.inference.forward import Forward
from train_jobs.inference.model_folder import Folder
from train_jobs.readers.tables import RowProblems, RowTable, texts
from train_jobs.tasks.sequences import Tokens, encode_texts, special_ids

Record = dict[str, Any]
DIGITS = 7  # significant digits of fp32; more would only print noise


@dataclass(frozen=True)
class Predicted:
    """Predictions of some rows."""

    records: list[Record]
    """One record per row, in the order of rows: JSON values, or arrays."""
    score_inputs: dict[str, Any]
    """JSON document from which scores are computed; empty without gold values."""
    truncated: int = 0
    """Number of truncated rows."""


class Predictor(ABC):
    """Predictor of one kind, such as text classification.

    Args:
        config: the configuration.
        folder: folder of the model.
        tokenizer: tokenizer of the model.
        forward: runs the model.

    Raises:
        SpecError: data.max_length exceeds the trained positions of the model.
    """

    default_length: int | None = None
    """Default of data.max_length, at most the trained positions of the model; None: all of these."""

    def __init__(self, config: PredictConfig, folder: Folder, tokenizer: Tokenizer, forward: Forward) -> None:
        self.config, self.folder, self.tokenizer, self.forward = config, folder, tokenizer, forward
        self.cls, self.sep = special_ids(tokenizer)
        wanted = config.data.max_length
        require_length(wanted, folder.path, folder.positions, folder.usable_positions)
        self.max_length = min(wanted or self.default_length or folder.positions, folder.usable_positions)

    @property
    def text_columns(self) -> list[str]:
        """Columns of text in a table."""
        return self.config.text_columns(self.folder.kind)

    def check(self, table: RowTable, problems: RowProblems) -> None:
        """Add the problems of rows that cannot be predicted or scored."""
        for column in self.text_columns:
            texts(table, column, problems)

    @abstractmethod
    def predict(self, table: RowTable, first: int) -> Predicted:
        """Predict the rows of a window.

        Args:
            table: the rows.
            first: index of its first row among all rows of the input.
        """

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return name -> type of a record's fields, as `prediction_files.arrow_type` reads types."""

    @property
    def is_number(self) -> bool:
        """Whether the answer of a record consists of numbers."""
        return False

    def answer(self, record: Record) -> Any:
        """Return the answer in a record of `predict`, without its probabilities.

        Raises:
            AssertionError: this kind of prediction cannot run in int8, so that its answers are never compared.
        """
        raise AssertionError(f"{type(self).__name__} does not run in int8")

    def scores(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Return metrics from the `score_inputs` of all windows.

        Raises:
            AssertionError: this kind of prediction has no scores; its constructor refuses `evaluate`.
        """
        raise AssertionError(f"{type(self).__name__} cannot be evaluated, and refuses it at its start")

    def scored_rows(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, ScoredRows]:
        """Return name of a set -> the rows behind its scores, for intervals and tests.

        Args:
            score_inputs: those of all windows.
        """
        return {}

    def score_details(self, score_inputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return further entries of result.json: intervals of the metrics, and facts of the rows.

        Args:
            score_inputs: those of all windows.
        """
        return {}

    def tokens(self, table: RowTable) -> tuple[list[Tokens], int]:
        """Encode the text, or pair of texts, of each row; return the sequences, and the number of truncated ones."""
        texts = (table.columns[column] for column in self.text_columns)
        return encode_texts(self.tokenizer, *texts, max_length=self.max_length)


def rounded(number: float) -> float:
    """Round to the significant digits of fp32."""
    return float(f"{number:.{DIGITS}g}")
