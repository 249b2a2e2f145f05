"""One contestant of benchmarks.pretrain_throughput: waits for `{"steps": N}` on stdin, makes N optimizer steps, prints
on stdout how long each took, and ends at N = 0."""

from __future__ import annotations

import argparse
import io
import json
import resource
import sys
import tempfile
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.throughput_setup import SEED, read
from train_jobs.config import ProfileConfig
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.profiler import StepProfiler

LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-4, 0.01, 1.0


class Turns:
    """Turn-taking of a contestant, and the duration of each step."""

    def __init__(self, device: str, warmup: int) -> None:
        self._gpu = device == "gpu"
        self._left, self._warming = warmup, True
        self._seconds: list[float] = []
        self._started = 0.0
        self._steps = self._faults = 0
        self.info: dict[str, Any] = {}

    def wait(self) -> bool:
        """Wait for a turn before a step; return False after the last one."""
        if self._left == 0:
            if self._warming:
                self._faults = _page_faults()
            self._send(self.info if self._warming else {"seconds": self._seconds})
            self._warming, self._seconds = False, []
            self._left = json.loads(sys.stdin.readline())["steps"]
        self._synchronise()  # work that is still queued must not count for this step
        self._started = time.perf_counter()
        return self._left > 0

    def made(self) -> None:
        """Record the duration of a step."""
        self._synchronise()
        self._seconds.append(time.perf_counter() - self._started)
        self._left -= 1
        self._steps += not self._warming
        if self._warming:
            self.info = {"first_steps": [round(seconds, 2) for seconds in self._seconds]}

    def end(self, loss: float) -> None:
        """Print the remaining facts."""
        memory = torch.cuda.max_memory_allocated() if self._gpu else _peak_resident()
        self._send({"memory": memory, "loss": loss, "faults": (_page_faults() - self._faults) // max(self._steps, 1)})

    def _synchronise(self) -> None:
        if self._gpu:
            torch.cuda.synchronize()

    @staticmethod
    def _send(what: dict[str, Any]) -> None:
        print(json.dumps(what), flush=True)


def _page_faults() -> int:
    """Return the pages that the system has cleared for this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _peak_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ours(folder: Path, *, precision: str) -> None:
    """Run the engine's loop on resident batches."""
    from train_jobs.config import CheckpointConfig, OptimizerConfig, TrainConfig
    from train_jobs.corpus.examples.batches import Batch
    from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
    from train_jobs.engine.loop.loop import Loop
    from train_jobs.engine.loop.staging import to_device
    from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
    from train_jobs.engine.runtime import distributed
    from train_jobs.engine.runtime.stop import StopRequest
    from train_jobs.models.bert.pretraining_heads import BertForPreTraining, pretraining_sums
    from train_jobs.models.bert.primitives import gradients_in_place
    from train_jobs.models.huggingface import load_weights
    from train_jobs.optim.factory import build_optimizer
    from train_jobs.tasks.pretraining import is_padded, packed_arrays

    setup, shape, sequences = read(folder)
    world = distributed.start(setup.device)
    device = world.device

    class Task:
        """BERT on the resident batches."""

        def __init__(self) -> None:
            self.model = BertForPreTraining(shape, shape.padded_vocab_size(30_522))
            load_weights(self.model, folder / "model")
            self.model.to(device)
            self._whole = Batch(**{name: tensor.numpy() for name, tensor in sequences.items()})

        def accumulating(self) -> AbstractContextManager[None]:
            return gradients_in_place()

        def train_batch(self, cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
            start = cursor.get("start", 0)
            following = (start + setup.global_batch) % len(self._whole)
            return self._whole.slice(start, start + setup.global_batch), {"start": following}

        def counts(self, batch: Batch) -> list[float]:
            return [float((batch.masked_labels >= 0).sum()), float(len(batch))]

        def loss(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            tensors = to_device(packed_arrays(batch, unpad=True), device)
            sums = pretraining_sums(self.model, tensors, next_sentence=True, padded=is_padded(batch))
            loss = sums.mlm_loss_sum / totals[0] + sums.nsp_loss_sum / totals[1]
            return loss, loss.detach()[None]

        def metrics(self, sums: list[float]) -> dict[str, float]:
            raise NotImplementedError

        def validate(self) -> dict[str, float]:
            raise NotImplementedError

    task = Task()
    with tempfile.TemporaryDirectory() as place:
        loop = Loop(
            task,
            build_optimizer(
                OptimizerConfig(name=setup.optimizer, learning_rate=LEARNING_RATE), task.model.named_parameters()
            ),
            world,
            LoopPolicy(
                config=TrainConfig(global_batch_size=setup.global_batch, micro_batch_size=setup.micro_batch, seed=SEED),
                precision=precision,
                schedule=lambda step, time_used: LEARNING_RATE,
                max_grad_norm=CLIP,
                validate_every=1,
            ),
            LoopServices(
                cadence=Cadence(CheckpointConfig()),
                checkpoints=CheckpointStore(Path(place), keep_last=1),
                metrics=MetricsLog(None),
                progress=ProgressLine(1, io.StringIO()),
                stop=StopRequest(),
                profiler=StepProfiler(ProfileConfig(), world, None),
            ),
        )
        turns = Turns(setup.device, setup.warmup)
        losses = [0.0]
        while turns.wait():
            assert loop._step()
            turns.made()
            assert loop._meter.sums is not None
            losses.append(float(loop._meter.sums))
        turns.end(losses[-1] - losses[-2])


def trainer(folder: Path, *, precision: str, compiled: bool) -> None:
    """Run transformers.BertForPreTraining under Trainer, with labels in place of masked positions."""
    from transformers import BertForPreTraining, Trainer, TrainerCallback, TrainingArguments

    setup, _, sequences = read(folder)
    # transformers predicts at every position and ignores -100: the same predictions, in the form that it accepts.
    labels = torch.full_like(sequences["input_ids"], -100)
    real = sequences["masked_labels"] >= 0
    rows = torch.arange(len(labels))[:, None].expand_as(real)
    labels[rows[real], sequences["masked_positions"][real]] = sequences["masked_labels"][real]
    columns = {
        "input_ids": sequences["input_ids"],
        "token_type_ids": sequences["token_type_ids"],
        "attention_mask": (torch.arange(setup.length) < sequences["lengths"][:, None]).long(),
        "labels": labels,
        "next_sentence_label": sequences["next_sentence_labels"],
    }

    class Resident(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        """Sequences of the batches, repeated."""

        def __len__(self) -> int:
            return len(labels) * 10_000

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {name: column[index % len(labels)] for name, column in columns.items()}

    turns = Turns(setup.device, setup.warmup)

    class TurnCallback(TrainerCallback):
        """Callback that waits for the turn."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if not turns.wait():
                raise _Finished
            contest.loss = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            turns.made()

    class InOrder(Trainer):
        """Compute the loss with the common order of sequences, and store it."""

        loss: float | torch.Tensor = 0.0

        def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
            loss = super().training_step(*arguments, **keywords)
            self.loss = self.loss + loss
            return loss

        def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    model = BertForPreTraining.from_pretrained(
        folder / "model",
        attn_implementation="sdpa",
        hidden_dropout_prob=setup.dropout,
        attention_probs_dropout_prob=setup.dropout,
    )
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            output_dir=place,
            max_steps=1_000_000,
            per_device_train_batch_size=setup.micro_batch,
            gradient_accumulation_steps=setup.accumulation,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=CLIP,
            lr_scheduler_type="constant",
            bf16=precision == "bf16",
            torch_compile=compiled,
            torch_compile_backend=setup.backend if compiled else None,
            use_cpu=setup.device == "cpu",
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            seed=SEED,
        )
        contest = InOrder(model=model, args=arguments, train_dataset=Resident(), callbacks=[TurnCallback()])
        with suppress(_Finished):
            contest.train()
        turns.end(float(contest.loss) / setup.accumulation)


class _Finished(Exception):  # noqa: N818 - not an error
    """Raised after the last step."""


def main() -> None:
    """Run the contestant that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", type=Path, required=True)
    parser.add_argument("--peer", choices=["ours", "trainer"], required=True)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    if arguments.peer == "ours":
        ours(arguments.setup, precision=arguments.precision)
    else:
        trainer(arguments.setup, precision=arguments.precision, compiled=arguments.compile)


if __name__ == "__main__":
    main()
