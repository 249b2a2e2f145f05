"""How long sentences and documents are: histograms whose bins double."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from train_jobs.artifacts.store_manifest import Shard
from train_jobs.corpus.arrow import numbers

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


def unigram_entropy(store: Path, shards: Sequence[Shard], vocab_size: int) -> float:
    """Entropy in nats of the frequencies of the validation tokens."""
    frequencies = np.zeros(vocab_size, np.int64)
    for shard in shards:
        if shard.split == "validation":
            with pa.memory_map(str(store / shard.file)) as mapped:
                reader = pa.ipc.open_file(mapped)
                for index in range(reader.num_record_batches):
                    ids = numbers(reader.get_batch(index).column(0).values.values)
                    frequencies += np.bincount(ids, minlength=vocab_size)
    seen = frequencies[frequencies > 0]
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum())
