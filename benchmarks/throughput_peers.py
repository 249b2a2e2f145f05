"""One contestant of benchmarks.pretrain_throughput: waits for `{"steps": N}` on stdin, makes N optimizer steps, prints
on stdout how long each took, and ends at N = 0."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.throughput_setup import ROWS, SEED, STORE, read

if TYPE_CHECKING:
    from train_jobs.engine.loop.loop import Loop
    from train_jobs.engine.runtime.distributed import World

LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-4, 0.01, 1.0
EPSILON = 1e-8  # of AdamW, the Trainer's default


class Turns:
    """Turn-taking of a contestant, and the mean duration of the steps of a turn; each step of the warm-up is timed."""

    def __init__(self, device: str, warmup: int) -> None:
        self._gpu = device == "gpu"
        self._left, self._warming = warmup, True
        self._seconds: list[float] = []
        self._started = 0.0
        self._turn = 0
        self._steps = self._faults = 0
        self.info: dict[str, Any] = {}

    def wait(self) -> bool:
        """Wait for a turn before a step; return False after the last one."""
        if self._left == 0:
            if self._warming:
                self._faults = _page_faults()
            self._send(self.info if self._warming else {"seconds": self._seconds})
            self._warming, self._seconds = False, []
            self._left = self._turn = json.loads(sys.stdin.readline())["steps"]
            self._synchronise()  # work that is still queued must not count for this turn
            self._started = time.perf_counter()
        elif self._warming:
            self._synchronise()
            self._started = time.perf_counter()
        return self._left > 0

    def made(self) -> None:
        """Record a step, at the end of a turn its duration. Within a turn nothing waits for the device."""
        self._left -= 1
        self._steps += not self._warming
        if self._warming:
            self._synchronise()
            self._seconds.append(time.perf_counter() - self._started)
            self.info = {"first_steps": [round(seconds, 2) for seconds in self._seconds]}
        elif self._left == 0:
            self._synchronise()
            self._seconds.append((time.perf_counter() - self._started) / self._turn)

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


def pretraining_loop(folder: Path, output: Path, world: World, *, precision: str) -> Loop:
    """Return the loop that `train_jobs.pretrain` makes, over resident batches and with the common weights.

    Args:
        folder: output of `throughput_setup.prepare`.
        output: folder of the run.
        world: the processes.
        precision: bf16 or fp32.
    """
    # not at the top: the memory of these modules would count for the Trainer
    from train_jobs.assembly.parts import load_parts
    from train_jobs.config import PretrainConfig
    from train_jobs.corpus.examples.batches import Batch
    from train_jobs.corpus.store.token_store import TokenStore
    from train_jobs.engine.runtime.stop import StopRequest
    from train_jobs.models.huggingface import load_weights
    from train_jobs.pretrain import make_loop

    setup, shape, sequences = read(folder)
    store = TokenStore.open(folder / STORE)
    config = PretrainConfig(
        model=shape,
        data={"store": folder / STORE, "sequence_length": setup.length},
        train={
            "global_batch_size": setup.global_batch,
            "micro_batch_size": setup.micro_batch,
            "precision": precision,
            "seed": SEED,
        },
        optimizer={
            "name": setup.optimizer,
            "learning_rate": LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
            "eps": EPSILON,
            "max_grad_norm": CLIP,
        },
    )
    parts = load_parts(config)
    common = replace(
        parts,
        model=lambda shape, rows, seed: parts.model(shape, shape.padded_vocab_size(ROWS), seed),
        schedule=lambda step, time_used: LEARNING_RATE,
    )
    loop = make_loop(config, store, common, output, world, StopRequest())
    load_weights(loop.task.model, folder / "model")
    whole = Batch(**{name: tensor.numpy() for name, tensor in sequences.items()})

    def train_batch(cursor: dict[str, int]) -> tuple[Batch, dict[str, int]]:
        start = cursor.get("start", 0)
        return whole.slice(start, start + setup.global_batch), {"start": (start + setup.global_batch) % len(whole)}

    loop.task.train_batch = train_batch  # type: ignore[method-assign]
    loop.policy = replace(loop.policy, batch_process=False)  # it would read the store
    return loop


def ours(folder: Path, *, precision: str) -> None:
    """Run the engine's loop on resident batches."""
    from train_jobs.engine.runtime import distributed

    setup, _, _ = read(folder)
    with tempfile.TemporaryDirectory() as place:
        loop = pretraining_loop(folder, Path(place), distributed.start(setup.device), precision=precision)
        turns = Turns(setup.device, setup.warmup)
        sums: list[torch.Tensor] = []  # on the device: reading them would make each step wait for it
        with loop.prefetching():
            while turns.wait():
                assert loop._step()
                turns.made()
                assert loop._meter.sums is not None
                sums = [*sums[-1:], loop._meter.sums.double()]
        before, after = sums
        turns.end(loop.task.metrics((after - before).tolist())["loss"])


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
