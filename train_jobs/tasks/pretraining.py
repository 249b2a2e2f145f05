"""BERT pretraining: masked language model and next-sentence prediction on a token store."""

from __future__ import annotations

import math

import numpy as np
import torch

from train_jobs.config import PretrainConfig
from train_jobs.corpus.batches import Batch, PretrainingData
from train_jobs.corpus.examples import Cursor
from train_jobs.corpus.store import TokenStore
from train_jobs.engine.distributed import World
from train_jobs.model.heads import BertForPreTraining, initialise
from train_jobs.model.objective import Sums, pretraining_sums


class BertPretraining:
    """Masked language model and next-sentence prediction, as the loop wants a task."""

    def __init__(self, config: PretrainConfig, store: TokenStore, world: World) -> None:
        self._config, self._world = config, world
        self._data = {
            split: PretrainingData(
                store,
                split,
                data=config.data,
                objective=config.objective,
                max_predictions=config.max_predictions,
                seed=config.train.seed,
            )
            for split in ("train", "validation")
        }
        self.model = BertForPreTraining(config.model, config.model.padded_vocab_size(store.manifest.vocab_size))
        initialise(self.model, config.train.seed)
        if not config.objective.next_sentence:
            self.model.freeze_next_sentence()
        self.model.to(world.device)
        self._vocab_size = store.manifest.vocab_size
        self._entropy = store.manifest.validation_unigram_entropy
        self._micro_batch_means = config.train.loss_normalization == "micro_batch"
        self._terms = ["mlm", "nsp"] if config.objective.next_sentence else ["mlm"]

    def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """This process's share of the next global batch."""
        batch, following = self._data["train"].batch(
            Cursor.from_dict(cursor) if cursor else Cursor(),
            global_batch_size=self._config.train.global_batch_size,
            rank=self._world.rank,
            world_size=self._world.size,
        )
        return batch, following.as_dict()

    def counts(self, batch: Batch) -> list[float]:
        """Masked tokens, and sentence pairs where they count; or for each term the micro batches, whose means count."""
        if self._micro_batch_means:
            size = self._config.train.micro_batch_size
            assert size != "auto", "the configuration refuses it"
            micro_batches = math.ceil(len(batch) / size)
            return [float(micro_batches)] * len(self._terms)
        masked = float((batch.masked_labels >= 0).sum())
        return [masked, float(len(batch))][: len(self._terms)]

    def loss(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """MLM loss over all masked tokens plus NSP loss over all pairs of the global batch.

        Or of the micro batch, as its part of a mean of such means: it counts as much as any other, whatever it holds
        and whichever process has it, and nothing if no token of it is masked. What is reported are global means.
        """
        sums = self._sums(batch)
        mlm, nsp = sums.mlm_loss_sum, sums.nsp_loss_sum
        if self._micro_batch_means:
            mlm, nsp = mlm / sums.mlm_count.clamp(min=1), nsp / len(batch)
        loss = mlm / totals[0]
        if self._config.objective.next_sentence:
            loss = loss + nsp / totals[1]
        return loss, as_vector(sums)

    def largest_batch(self, sequences: int) -> Batch:
        """Sequences of full length with all predictions; one is shorter, as almost always: attention takes a mask."""
        length, predictions = self._config.data.sequence_length, self._config.max_predictions
        pieces = np.arange(sequences * length, dtype=np.int64).reshape(sequences, length) % self._vocab_size
        lengths = np.full(sequences, length, np.int64)
        lengths[0] -= 1
        return Batch(
            input_ids=pieces,
            token_type_ids=np.zeros_like(pieces),
            lengths=lengths,
            masked_positions=np.tile(np.arange(predictions, dtype=np.int64), (sequences, 1)),
            masked_labels=pieces[:, :predictions].copy(),
            next_sentence_labels=np.zeros(sequences, np.int64),
        )

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Mean losses and accuracies."""
        mlm_loss, mlm_correct, mlm_count, nsp_loss, nsp_correct, nsp_count = sums
        found = {"mlm_loss": mlm_loss / mlm_count, "mlm_accuracy": mlm_correct / mlm_count}
        if self._config.objective.next_sentence:
            found |= {"nsp_loss": nsp_loss / nsp_count, "nsp_accuracy": nsp_correct / nsp_count}
        return {"loss": found["mlm_loss"] + found.get("nsp_loss", 0.0), **found}

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """The same held-out sequences with the same masks every time, shared out over the processes."""
        total = torch.zeros(6, dtype=torch.float64, device=self._world.device)
        for batch in self._data["validation"].validation_batches(
            self._config.validation.max_sequences,
            micro_batch_size,
            rank=self._world.rank,
            world_size=self._world.size,
        ):
            total += as_vector(self._sums(batch))
            self._world.activity.beat()
        found = self.metrics(self._world.sum_(total).tolist())
        return {**found, "unigram_entropy": self._entropy}

    def _sums(self, batch: Batch) -> Sums:
        tensors = {
            name: torch.from_numpy(array).to(self._world.device, non_blocking=True)
            for name, array in batch.arrays().items()
        }
        return pretraining_sums(
            self.model,
            tensors,
            next_sentence=self._config.objective.next_sentence,
            padded=bool(batch.lengths.min() < batch.input_ids.shape[1]),
        )


def as_vector(sums: Sums) -> torch.Tensor:
    """The six sums as one float64 vector."""
    return torch.stack([value.detach().double() for value in sums])
