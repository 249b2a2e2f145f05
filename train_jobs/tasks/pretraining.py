"""BERT pretraining on a token store; by default masked language model and next-sentence prediction."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch

from train_jobs.assembly.parts import Parts, load_parts
from train_jobs.config import PretrainConfig, SpecError, TrainConfig
from train_jobs.config.arithmetic import flops_per_token
from train_jobs.corpus.examples.batches import Batch
from train_jobs.corpus.examples.held_out_figures import SUMS, UnigramModel, unigram_figures, weighted_mean
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.loop.batch_process import Maker
from train_jobs.engine.loop.staging import Arrays, to_device
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.encoder import allow_variants, is_compiled, require_compiler
from train_jobs.models.bert.pretraining_heads import IGNORED, BertForPreTraining
from train_jobs.models.bert.primitives import gradients_in_place
from train_jobs.protocols import Term
from train_jobs.tasks.pretraining_batches import Layout, PretrainingBatches

VALIDATION_BATCH = 32  # at most: the spread of the losses of batches gives the error bar, which needs enough of them


class BertPretraining:
    """Pretraining on text, as a task of the training loop.

    Args:
        config: the configuration.
        store: tokenised text.
        world: the processes.
        parts: model and objective. None: those of the configuration.
    """

    def __init__(self, config: PretrainConfig, store: TokenStore, world: World, parts: Parts | None = None) -> None:
        parts = parts or load_parts(config)
        self._config, self._world, self._objective = config, world, parts.objective
        self._labels = dict(parts.objective.labels)
        rows = config.model.padded_vocab_size(store.manifest.vocab_size)
        self.model = parts.model(config.model, rows, config.train.seed)
        if "next_sentence_labels" not in self._labels.values() and isinstance(self.model, BertForPreTraining):
            self.model.freeze_next_sentence()  # or weight decay would shrink a head without a loss
        # a user's own model may not support packed sequences: its signature decides
        unpad = config.train.unpad and "packing" in inspect.signature(self.model.forward).parameters
        self.model.to(world.device)
        compiles = is_compiled(config.train.compile, world.device)
        on_gpu = world.device.type == "cuda"
        graphs = compiles and config.train.cuda_graphs and on_gpu
        if compiles:
            compile_model(self.model, together=compiles_together(world.device, config.train), graphs=graphs)
        layout = Layout(world.rank, world.size, on_gpu=on_gpu, unpad=unpad, graphs=graphs)
        self._batches = PretrainingBatches(config, store, parts, layout)
        self._held_out = self._batches.data("validation")
        self._vocab_size, self._separator = store.manifest.vocab_size, store.manifest.special_ids.sep
        self._unigram: UnigramModel | None = None
        self._micro_batch_means = config.train.loss_normalization == "micro_batch"

    def flops(self, sequences: float, tokens: float) -> float:
        """Return BERT's floating-point operations at the mean length, also for a user's own model of this shape."""
        return tokens * flops_per_token(
            self._config.model,
            self._vocab_size,
            sequence_length=tokens / sequences,
            max_predictions=self._config.max_predictions,
        )

    def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        """Return this process's share of a global batch and the next cursor; see `TrainingTask.train_batch`."""
        return self._batches.train_batch(cursor)

    def batch_maker(self) -> Maker:
        """Return the description from which another process makes the same batches, see `HasMaker`."""
        return self._batches.maker()

    def batch_from(self, arrays: Arrays) -> Batch:
        """Return a batch of that process."""
        return Batch(**arrays)

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context in which backward passes add to the gradients in place."""
        return gradients_in_place()

    def counts(self, batch: Batch) -> list[float]:
        """Return the denominator of each term of the loss, see `PretrainingBatches.counts`."""
        return self._batches.counts(batch)

    def loss(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a micro batch's part of the loss, and loss, correct and counted labels of each term, fp64 [3 x terms].

        Each term is divided by all of its labels in the global batch. With `train.loss_normalization: micro_batch` it
        is a mean over the micro batch, divided by the number of micro batches; one without labels adds 0.
        """
        # Reported are sums in both cases, so metrics are means over all labels and comparable between the two settings.
        return self.staged_loss(batch, to_device(self.arrays(batch), self._world.device), totals)

    def arrays(self, batch: Batch) -> Arrays:
        """Return the arrays of a micro batch, with the packing of its tokens if that saves computation."""
        return self._batches.arrays(batch)

    def staged_loss(
        self, batch: Batch, tensors: Mapping[str, torch.Tensor], totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same as `loss`, see `StagesBatches`."""
        terms = self._terms(batch, tensors)
        losses = [term.loss / term.count.clamp(min=1) if self._micro_batch_means else term.loss for term in terms]
        loss = losses[0] / totals[0]
        for number, part in enumerate(losses[1:], start=1):
            loss = loss + part / totals[number]
        return loss, as_vector(terms)

    def largest_batch(self, sequences: int) -> Batch:
        """Return synthetic sequences of full length with all predictions, see `TrainingTask.largest_batch`."""
        # One is shorter: attention with a mask needs more memory than without. On a GPU this is packed, as every
        # batch of the data is.
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
        """Return TERM_loss (mean, nats) and TERM_accuracy (0 to 1) of each term, and loss, the sum of mean losses."""
        found: dict[str, float] = {}
        for number, name in enumerate(self._labels):
            loss, correct, count = sums[3 * number : 3 * number + 3]
            found |= {f"{name}_loss": loss / count, f"{name}_accuracy": correct / count}
        return {"loss": sum(found[f"{name}_loss"] for name in self._labels), **found}

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        """Evaluate on a sample of the held-out documents, see `validation_sample`.

        Returns:
            `metrics`, TERM_base_rate of each term (the accuracy of always giving the most frequent answer),
            unigram_entropy (nats) of the same tokens, and unigram_margin_error, the standard error of the difference
            between mlm_loss and unigram_entropy. These are means over sources, weighted by their held-out tokens; with
            several sources, METRIC.SOURCE is that of one source.
        """
        # The same sequences with the same masks every time, so that losses of different steps are comparable.
        data, most = self._held_out, self._config.validation.max_sequences
        sample, terms = data.sample(most), 3 * len(self._labels)
        unigram = self._unigram or UnigramModel(sample, self._vocab_size, separator=self._separator)
        self._unigram = unigram
        # float64 on the host: a batch has few figures, and the entropy is computed there
        sums = np.zeros((len(sample), terms + SUMS))
        for source, batch in data.validation_batches(
            most, min(micro_batch_size, VALIDATION_BATCH), rank=self._world.rank, world_size=self._world.size
        ):
            figures = as_vector(self._terms(batch, to_device(self.arrays(batch), self._world.device))).cpu().numpy()
            loss = float(figures[3 * list(self._labels).index("mlm")]) if "mlm" in self._labels else 0.0
            labels = batch.masked_labels[batch.masked_labels != IGNORED]
            sums[source] += np.concatenate([figures, unigram.sums(source, labels, loss)])
            self._world.activity.beat()  # a long validation is progress, not a hang
        total = self._world.sum_(torch.from_numpy(sums.ravel()).to(self._world.device)).cpu().numpy()
        each = total.reshape(sums.shape)
        found = weighted_mean(sample, [self.metrics(row) for row in each[:, :terms].tolist()])
        ones = sum(one.share * float(one.examples.rows[:, 4].mean()) for one in sample)
        for name, labels in self._labels.items():
            found[f"{name}_base_rate"] = unigram.base_rate if labels == "masked_labels" else max(ones, 1 - ones)
        return {**found, **unigram_figures(sample, each[:, terms:], with_margin="mlm" in self._labels)}

    def _terms(self, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> list[Term]:
        """Return the terms of a micro batch, in the order of the objective's labels."""
        found = self._objective.losses(self.model, tensors, padded=is_padded(batch))
        if found.keys() != self._labels.keys():
            raise SpecError(
                f"invalid objective {self._config.objective.name!r}: its losses do not match its labels",
                facts={"need": ", ".join(self._labels), "have": ", ".join(found)},
                fix="return one loss for each of its labels (docs/own-classes.md)",
            )
        return [found[name] for name in self._labels]


def is_padded(batch: Batch) -> bool:
    """Return whether any sequence of the batch is padded."""
    return bool(batch.lengths.min() < batch.input_ids.shape[1])


def compiles_together(device: torch.device, config: TrainConfig) -> bool:
    """Return whether all layers are compiled as one function: on a GPU, whose host must launch kernels fast."""
    # Not if sums overlap: they need the gradients of one layer after another.
    return device.type == "cuda" and not config.overlap_all_reduce


def compile_model(model: torch.nn.Module, *, together: bool = False, graphs: bool = False) -> None:
    """Compile BERT's layers, on a GPU also its other parts, or another model; it happens at the first forward pass.

    Args:
        model: the model, on its device.
        together: whether BERT's layers are compiled as one function, see `Encoder.compile_layers`.
        graphs: whether to record CUDA graphs of BERT.

    Raises:
        SpecError: the model is on a CPU and no C++ compiler is installed.
    """
    require_compiler(next(model.parameters()).device, key="train.compile")
    if isinstance(model, BertForPreTraining):
        model.compile_parts(together=together, graphs=graphs)
    else:
        # Packed batches differ in their number of tokens: with dynamic=False each would be compiled, up to the limit.
        allow_variants()
        model.compile(dynamic=True)


def as_vector(terms: list[Term]) -> torch.Tensor:
    """Return loss, correct labels and counted labels of each term as one vector, fp64 [3 x terms]."""
    return torch.stack([value.detach().double() for term in terms for value in term])
