"""How long sentences and documents are: histograms whose bins double."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

QUANTILES = (0.05, 0.5, 0.95)


class Histogram(NamedTuple):
    """Lengths in tokens."""

    edges: list[int]
    """[bins + 1] 1, 2, 4, 8, ...: a bin is from its edge to below the next."""
    counts: list[int]
    """[bins] how many are in each."""
    mean: float
    quantiles: dict[str, int]
    """5%, 50%, 95% of all are no longer."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return self._asdict()


def histogram(lengths: npt.NDArray[np.int64]) -> Histogram:
    """Of lengths above 0; at least one."""
    bins = int(lengths.max()).bit_length()
    edges = [1 << power for power in range(bins + 1)]
    counts, _ = np.histogram(lengths, edges)
    found = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    quantiles = {f"{share:.0%}": int(value) for share, value in zip(QUANTILES, found, strict=True)}
    return Histogram(edges, counts.tolist(), float(lengths.mean()), quantiles)
