"""BERT pretraining: an objective, by default masked language model and next-sentence prediction, on a token store."""

from __future__ import annotations

import inspect
import math
from contextlib import AbstractContextManager

import numpy as np
import torch

from train_jobs.assembly.parts import Parts, load_parts
from train_jobs.config import PretrainConfig, SpecError
from train_jobs.config.arithmetic import flops_per_token
from train_jobs.corpus.examples.batches import Batch, PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.linear import gradients_in_place
from train_jobs.models.bert.losses import IGNORED
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.compiling import is_compiled, require_compiler
from train_jobs.models.packing import packing_arrays
from train_jobs.protocols import Term


class BertPretraining:
    """What the objective learns on text, as the loop wants a task.

    Args:
        parts: model and objective; None: as the configuration names them.
    """

    def __init__(self, config: PretrainConfig, store: TokenStore, world: World, parts: Parts | None = None) -> None:
        parts = parts or load_parts(config)
        self._config, self._world, self._objective = config, world, parts.objective
        self._labels = dict(parts.objective.labels)
        self._data = {
            split: PretrainingData(
                store,
                split,
                data=config.data,
                plan=parts.plan,
                objective=config.objective,
                max_predictions=config.max_predictions,
                seed=config.train.seed,
            )
            for split in ("train", "validation")
        }
        rows = config.model.padded_vocab_size(store.manifest.vocab_size)
        self.model = parts.model(config.model, rows, config.train.seed)
        if "next_sentence_labels" not in self._labels.values() and isinstance(self.model, BertForPreTraining):
            self.model.freeze_next_sentence()
        self._unpad = config.train.unpad and "packing" in inspect.signature(self.model.forward).parameters
        self.model.to(world.device)
        if is_compiled(config.train.compile, world.device):
            compile_layers(self.model)
        self._vocab_size = store.manifest.vocab_size
        self._entropy = store.manifest.validation_unigram_entropy
        self._micro_batch_means = config.train.loss_normalization == "micro_batch"

    def flops(self, sequences: float, tokens: float) -> float:
        """By formula, for BERT at the mean length; a model of the user's own is taken for one of this shape."""
        return tokens * flops_per_token(
            self._config.model,
            self._vocab_size,
            sequence_length=tokens / sequences,
            max_predictions=self._config.max_predictions,
        )

    def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """This process's share of the next global batch."""
        batch, following = self._data["train"].batch(
            Cursor.from_dict(cursor) if cursor else Cursor(),
            global_batch_size=self._config.train.global_batch_size,
            rank=self._world.rank,
            world_size=self._world.size,
        )
        return batch, following.as_dict()

    def accumulating(self) -> AbstractContextManager[None]:
        """Let the backward passes of one step add to the gradients in place."""
        return gradients_in_place()

    def counts(self, batch: Batch) -> list[float]:
        """Labels of each term that count; or for each term the micro batches, whose means count."""
        if self._micro_batch_means:
            size = self._config.train.micro_batch_size
            assert size != "auto", "the configuration refuses it"
            micro_batches = math.ceil(len(batch) / size)
            return [float(micro_batches)] * len(self._labels)
        return [float((getattr(batch, labels) != IGNORED).sum()) for labels in self._labels.values()]

    def loss(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over the terms of their losses, each over all of its labels in the global batch.

        Or of the micro batch, as its part of a mean of such means: it counts as much as any other, whatever it holds
        and whichever process has it, and nothing if no label of it counts. What is reported are global means.
        """
        terms = self._terms(batch)
        losses = [term.loss / term.count.clamp(min=1) if self._micro_batch_means else term.loss for term in terms]
        loss = losses[0] / totals[0]
        for number, part in enumerate(losses[1:], start=1):
            loss = loss + part / totals[number]
        return loss, as_vector(terms)

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
        found: dict[str, float] = {}
        for number, name in enumerate(self._labels):
            loss, correct, count = sums[3 * number : 3 * number + 3]
            found |= {f"{name}_loss": loss / count, f"{name}_accuracy": correct / count}
        return {"loss": sum(found[f"{name}_loss"] for name in self._labels), **found}

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """The same held-out sequences with the same masks every time, shared out over the processes."""
        total = torch.zeros(3 * len(self._labels), dtype=torch.float64, device=self._world.device)
        for batch in self._data["validation"].validation_batches(
            self._config.validation.max_sequences,
            micro_batch_size,
            rank=self._world.rank,
            world_size=self._world.size,
        ):
            total += as_vector(self._terms(batch))
            self._world.activity.beat()
        found = self.metrics(self._world.sum_(total).tolist())
        return {**found, "unigram_entropy": self._entropy}

    def _terms(self, batch: Batch) -> list[Term]:
        """The terms of a micro batch, in the order of the objective's labels."""
        tensors = on_device(batch, self._world.device, unpad=self._unpad)
        found = self._objective.losses(self.model, tensors, padded=is_padded(batch))
        if found.keys() != self._labels.keys():
            raise SpecError(
                f"objective.name: {self._config.objective.name} gives other losses than its labels say",
                facts={"need": ", ".join(self._labels), "have": ", ".join(found)},
                fix="mend losses (docs/own-classes.md)",
            )
        return [found[name] for name in self._labels]


def on_device(batch: Batch, device: torch.device, *, unpad: bool) -> dict[str, torch.Tensor]:
    """A batch's arrays, and with `unpad` how its tokens are packed, where that saves anything."""
    packing = packing_arrays(batch.lengths, batch.input_ids.shape[1]) if unpad else {}
    arrays = {**batch.arrays(), **packing}
    return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}


def is_padded(batch: Batch) -> bool:
    """Whether some sequence is shorter than the longest that there may be."""
    return bool(batch.lengths.min() < batch.input_ids.shape[1])


def compile_layers(model: torch.nn.Module) -> None:
    """Of BERT each layer, of another model all of it, when they first run.

    Raises:
        SpecError: there is no C++ compiler, which a CPU needs.
    """
    require_compiler(next(model.parameters()).device, key="train.compile")
    if isinstance(model, BertForPreTraining):
        model.bert.encoder.compile_layers()
    else:
        model.compile(dynamic=False)


def as_vector(terms: list[Term]) -> torch.Tensor:
    """Loss, labels predicted right and labels counted of each term, as one float64 vector."""
    return torch.stack([value.detach().double() for term in terms for value in term])
