"""Agreement of int8 with fp32: how often the predictions that a job writes have the answer of fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from train_jobs.inference.onnx_model import OnnxModel
from train_jobs.inference.predictor import Predictor, Record
from train_jobs.readers.tables import RowTable

COMPARED = 256  # rows that int8 and fp32 both predict, per process


class Agreement:
    """Agreement of int8 with fp32 over some rows; without int8, nothing is compared.

    Args:
        task: predictor of the job.

    Attributes:
        rows: number of compared rows.
    """

    def __init__(self, task: Predictor) -> None:
        model = task.forward.model
        self._task = task
        self._model = model if isinstance(model, OnnxModel) and model.int8 else None
        self.rows = self._same = 0
        self._largest = 0.0

    def add(self, table: RowTable, first: int, records: Sequence[Record]) -> None:
        """Predict the rows of a window in fp32 too, until `COMPARED` rows are compared.

        Args:
            table: the rows.
            first: index of its first row among all rows of the input.
            records: their records as predicted with int8.
        """
        count = min(len(table), COMPARED - self.rows)
        if self._model is None or not count:
            return
        columns = {name: values[:count] for name, values in table.columns.items()}
        with self._model.in_fp32():
            exact = self._task.predict(replace(table, columns=columns, lines=table.lines[:count]), first).records
        self.rows += count
        # Records, not outputs of the model: these contain padding, and the answer is not always their maximum.
        for pair in zip(exact, records[:count], strict=True):
            expected, found = map(self._task.answer, pair)
            if self._task.is_number:
                self._largest = max(self._largest, float(np.abs(np.subtract(expected, found)).max()))
            else:
                self._same += expected == found

    def __str__(self) -> str:
        share = f"{self._same / max(self.rows, 1):.1%} of the answers as in fp32"
        what = f"largest difference from fp32 {self._largest:.2g}" if self._task.is_number else share
        return f"int8       {what}, over {self.rows} rows"
