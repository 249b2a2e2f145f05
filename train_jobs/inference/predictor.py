"""What every kind of prediction has: which columns it reads, what it makes of rows, how that is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from train_jobs.config import PredictConfig, SpecError
from train_jobs.inference.forward import Forward, Tokens, joined
from train_jobs.inference.model_folder import Folder
from train_jobs.tasks.rows.columns import texts
from train_jobs.tasks.rows.tables import Problems, Table
from train_jobs.tasks.sequences import fitted

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("tsv", "csv", "jsonl", "parquet")
LINES = "lines"
Record = dict[str, Any]
DIGITS = 7  # significant ones, all that fp32 has


@dataclass(frozen=True)
class Predicted:
    """What became of some rows."""

    records: list[Record]
    """One of each row, in their order: values of JSON, or arrays."""
    judged: dict[str, Any]
    """What scores need of them, as JSON has it; nothing where nobody says what is right."""
    cut: int = 0
    """Rows of which something was cut off."""


class Task(ABC):
    """One kind of prediction.

    Args:
        config: what is wanted.
        folder: of the model.
        tokenizer: of the model.
        forward: the model.
    """

    forms: tuple[str, ...] = (*TABLES, LINES)
    """Of input, that it can read."""

    def __init__(self, config: PredictConfig, folder: Folder, tokenizer: Tokenizer, forward: Forward) -> None:
        self.config, self.folder, self.tokenizer, self.forward = config, folder, tokenizer, forward
        vocabulary = tokenizer.get_vocab()
        self.cls, self.sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
        self.max_length = _max_length(config, folder, self.usual_length)

    @property
    def usual_length(self) -> int:
        """Tokens of a sequence where the configuration does not say."""
        return self.folder.positions

    @property
    def text_columns(self) -> list[str]:
        """Of a table, those that hold text."""
        data = self.config.data
        return [data.text, *([data.pair] if data.pair else [])]

    @property
    def columns(self) -> list[str]:
        """Of a table, all that are read."""
        return list(dict.fromkeys([*self.text_columns, *self.config.data.keep]))

    def check(self, table: Table, problems: Problems) -> None:
        """Notes what is wrong with rows."""
        for column in self.text_columns:
            texts(table, column, problems)

    @abstractmethod
    def predict(self, table: Table, first: int) -> Predicted:
        """What the model says of rows, the first of which has that number among all."""

    @abstractmethod
    def fields(self) -> dict[str, pa.DataType]:
        """What a record has, and as what Parquet has it."""

    def scores(self, judged: Sequence[dict[str, Any]]) -> dict[str, float]:
        """Metrics, from what was judged of all rows; of a kind that can be evaluated."""
        raise AssertionError(f"{type(self).__name__} has none: it refuses to be evaluated when it is made")

    def tokens(self, table: Table) -> tuple[list[Tokens], int]:
        """The text of each row, or its two texts, as a sequence; and of how many something was cut off."""
        first, *pair = (self._pieces(table.columns[column]) for column in self.text_columns)
        found, cut = [], 0
        for row, one in enumerate(first):
            other = pair[0][row] if pair else None
            room = self.max_length - (2 if other is None else 3)
            kept, kept_other = fitted(len(one), len(other or ()), room)
            cut += kept + kept_other < len(one) + len(other or ())
            found.append(joined(self.cls, self.sep, one[:kept], None if other is None else other[:kept_other]))
        return found, cut

    def _pieces(self, some: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.tokenizer.encode_batch_fast(list(some), add_special_tokens=False)]


def rounded(number: float) -> float:
    """To the digits that it has."""
    return float(f"{number:.{DIGITS}g}")


def _max_length(config: PredictConfig, folder: Folder, usual: int) -> int:
    wanted = config.data.max_length
    if wanted is not None and wanted > folder.positions:
        raise SpecError(
            f"data.max_length {wanted} is more than the {folder.positions} positions of {folder.path}",
            fix=f"--set data.max_length={folder.positions}",
        )
    return min(wanted or usual, folder.positions)
