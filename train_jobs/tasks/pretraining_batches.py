"""Batches of pretraining without the model, so that another process can make them too."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy.typing as npt

from train_jobs.artifacts.store_manifest import Split, StoreManifest
from train_jobs.artifacts.store_places import store_path
from train_jobs.assembly.parts import Parts, load_parts
from train_jobs.config import PretrainConfig
from train_jobs.corpus.examples.batches import Batch, PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.loop.batch_process import Maker
from train_jobs.engine.loop.staging import Arrays
from train_jobs.models.bert.pretraining_heads import IGNORED
from train_jobs.models.packing import MULTIPLE, graph_multiple, packing_arrays


class Layout(NamedTuple):
    """Layout of the batches of a process; all values are JSON."""

    rank: int
    world_size: int
    on_gpu: bool
    unpad: bool
    """Whether to pack the tokens of a micro batch."""
    graphs: bool
    """Whether packed tokens are filled up, so that CUDA graphs have few shapes."""


class PretrainingBatches:
    """Batches of one process, and what the loss of a micro batch needs of them.

    Args:
        config: the configuration.
        store: tokenised text.
        parts: the objective decides the examples.
        layout: the process, and its arrays.
    """

    def __init__(self, config: PretrainConfig, store: TokenStore, parts: Parts, layout: Layout) -> None:
        self._config, self._store, self._layout = config, store, layout
        self._plan, self._labels = parts.plan, dict(parts.objective.labels)
        self._data = self.data("train")
        self._micro_batch_means = config.train.loss_normalization == "micro_batch"

    def data(self, split: Split) -> PretrainingData:
        """Return the sequences of a split."""
        return PretrainingData(
            self._store,
            split,
            data=self._config.data,
            plan=self._plan,
            objective=self._config.objective,
            max_predictions=self._config.max_predictions,
            seed=self._config.train.seed,
        )

    def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """Return this process's share of a global batch and the next cursor; see `TrainingTask.train_batch`."""
        batch, following = self._data.batch(
            Cursor.from_dict(cursor) if cursor else Cursor(),
            global_batch_size=self._config.train.global_batch_size,
            rank=self._layout.rank,
            world_size=self._layout.world_size,
        )
        return batch, following.as_dict()

    def counts(self, batch: Batch) -> list[float]:
        """Return the denominator of each term of the loss.

        Its labels in this share; with `train.loss_normalization: micro_batch`, the micro batches of this share.
        """
        if self._micro_batch_means:
            size = self._config.train.on_device(on_cpu=not self._layout.on_gpu).micro_batch_size
            assert isinstance(size, int), "the configuration refuses auto"
            return [float(math.ceil(len(batch) / size))] * len(self._labels)
        return [float((getattr(batch, labels) != IGNORED).sum()) for labels in self._labels.values()]

    def arrays(self, batch: Batch) -> Arrays:
        """Return the arrays of a micro batch, with the packing of its tokens if that saves computation."""
        layout = self._layout
        multiple = graph_multiple(len(batch), self._config.data.sequence_length) if layout.graphs else MULTIPLE
        return packed_arrays(batch, unpad=layout.unpad, always=layout.on_gpu, multiple=multiple)

    def maker(self) -> Maker:
        """Return the description from which another process makes the same batches."""
        return Maker(
            f"{__name__}:{from_description.__name__}",
            {
                "config": self._config.model_dump(mode="json"),
                "store": str(self._store.folder),
                "manifest": self._store.manifest.model_dump(mode="json"),
                "layout": self._layout._asdict(),
            },
        )


def from_description(
    *, config: dict[str, Any], store: str, manifest: dict[str, Any], layout: dict[str, Any]
) -> PretrainingBatches:
    """Return the batches of a description, see `PretrainingBatches.maker`."""
    found = PretrainConfig.model_validate(config)
    opened = TokenStore(store_path(store), StoreManifest.model_validate(manifest))
    return PretrainingBatches(found, opened, load_parts(found), Layout(**layout))


def packed_arrays(
    batch: Batch, *, unpad: bool, always: bool = False, multiple: int = MULTIPLE
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a batch by name.

    Args:
        batch: the batch.
        unpad: whether to add the packing of the tokens, if that saves computation.
        always: whether to add it to every batch, as on GPUs.
        multiple: number of which the packed tokens are a multiple.
    """
    if not unpad:
        return batch.arrays()
    packing = packing_arrays(batch.lengths, batch.input_ids.shape[1], always=always, multiple=multiple)
    return {**batch.arrays(), **packing}
