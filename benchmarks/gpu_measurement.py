"""Device, sizes, loops, programs and results of the rows of the GPU day."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_estimates import CARDS
from benchmarks.input_pipeline import Pipeline, make_loop
from train_jobs.corpus.examples.batches import Batch
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime.devices import autocast
from train_jobs.engine.runtime.distributed import World
from train_jobs.tools import gpu_report


class RowFailed(Exception):  # noqa: N818
    """A promise that did not hold."""


class NotApplicable(Exception):  # noqa: N818
    """This machine has nothing that the row could measure."""


class Size(NamedTuple):
    """Sizes of the measurements."""

    small: str
    """Recipe of checks."""
    large: str
    """Recipe of figures about optimizer and memory."""
    length: int
    micro_batch: int
    steps: int
    rounds: int
    probe: tuple[int, ...]
    """Micro batches to search, the largest first."""


GPU = Size("base", "large", 128, 128, 10, 5, (2048, 1024, 512, 256, 128, 64))
REHEARSAL = Size("tiny", "tiny", 32, 4, 2, 1, (8, 4))


class Day(NamedTuple):
    """Device, sizes, and a folder for files."""

    folder: Path
    device: torch.device
    size: Size
    gpus: int

    @property
    def kind(self) -> str:
        """The device, as the commands name it."""
        return "gpu" if self.device.type == "cuda" else "cpu"

    @property
    def world(self) -> World:
        """This process alone."""
        return World(rank=0, local_rank=0, size=1, device=self.device)

    def loop(self, recipe: str, *, short: float = 0.1, **train: Any) -> tuple[Loop, Pipeline]:
        """Return a loop of a recipe over the embedded text.

        Args:
            recipe: name of the recipe.
            short: share of sequences to shorten.
            train: changes of its section `train`.
        """
        size = self.size
        settings = {"global_batch_size": 2 * size.micro_batch, "micro_batch_size": size.micro_batch, "seed": 1}
        changes = {
            "train": {**settings, **train},
            "data": {"sequence_length": size.length, "short_sequence_probability": short},
        }
        place = self.folder.parent / "loops"  # one store of the text for all rows
        place.mkdir(parents=True, exist_ok=True)
        return make_loop(recipe, place, self.world, changes)

    def run(self, module: str, *words: str, ranks: int = 0) -> str:
        """Run a module in a process of its own, or in `ranks` of torchrun; return its output.

        Raises:
            RowFailed: it failed.
        """
        command = ("-m", module, *words)
        if ranks:
            done = gpu_report.torchrun(ranks, *command)
        else:
            done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        if done.returncode:
            raise RowFailed(f"{module} ended with {done.returncode}: {(done.stderr + done.stdout)[-1500:]}")
        return done.stdout

    def pretrain(self, name: str, *sets: str, batch: int, ranks: int) -> tuple[float, Path]:
        """Run a pretraining in processes of torchrun.

        Args:
            name: name of its folder.
            sets: assignments of its configuration.
            batch: global batch in micro batches.
            ranks: number of processes.

        Returns:
            Median rate of the second half in sequences/s, and the run's folder.
        """
        folder, size = self.folder / name, self.size
        shutil.rmtree(folder, ignore_errors=True)
        sets += (f"train.steps={size.steps}", f"train.global_batch_size={batch * size.micro_batch}")
        sets += (f"train.micro_batch_size={size.micro_batch}", f"data.sequence_length={size.length}")
        words = [word for one in (*sets, "train.log_every=1") for word in ("--set", one)]
        self.run("train_jobs.pretrain", "--config", size.small, "--device", self.kind, "--output", str(folder),
                 *words, ranks=ranks)  # fmt: skip
        found = [one["sequences_per_second"] for one in reports(folder, "sequences_per_second")]
        return statistics.median(found[len(found) // 2 :]), folder

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Measured(NamedTuple):
    """Result of a row."""

    figures: dict[str, Any]
    estimates: dict[str, tuple[float, float]] = {}  # noqa: RUF012 - never changed
    raw: str = ""
    """Output of programs."""


def card() -> str | None:
    """Return the name of this GPU among the estimates; None for another one or a CPU."""
    if not torch.cuda.is_available():
        return None
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    same = [one for one in CARDS if one.split()[0] in name]
    return min(same, key=lambda one: abs(CARDS[one].bytes - memory), default=None)


def expect(condition: bool, text: str) -> None:
    """Raise RowFailed with a text unless a condition holds."""
    if not condition:
        raise RowFailed(text)


@contextmanager
def sync_mode(day: Day, mode: str) -> Iterator[None]:
    """Make torch warn or raise at each synchronisation of the host with a GPU."""
    if day.device.type == "cuda":
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        if day.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the largest relative difference."""
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


def loss_and_norm(loop: Loop, task: Pipeline, batch: Batch, size: int, times: int = 1) -> tuple[float, float]:
    """Return loss and gradient norm of a batch in micro batches of `size`; the last of several `times`.

    Without dropout: its random numbers differ between devices, and with the number of filling tokens.
    """
    device = loop.gradients.flat.device
    totals = torch.tensor(task.counts(batch), dtype=torch.float32, device=device)
    task.model.eval()
    for _ in range(times):
        loop.gradients.zero_()
        losses = []
        for start in range(0, len(batch), size):
            with task.accumulating(), autocast(loop.policy.precision, device):
                loss, _ = task.loss(batch.slice(start, start + size), totals)
                losses.append(loss.detach().double())  # a copy: the next micro batch may write over the loss
                loss.backward()
    return float(torch.stack(losses).sum()), float(loop.gradients.flat.double().norm())


def reports(folder: Path, key: str) -> list[dict[str, float]]:
    """Return the reports of a run that have a metric."""
    path = next(iter(folder.rglob("metrics.jsonl")))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    found = [one.get("metrics", one) for one in found]
    return [one for one in found if key in one]


def random_model(day: Day, kind: str, *, positions: int = 512) -> Path:
    """Save a model of transformers with drawn weights and a small vocabulary; return its folder."""
    import transformers

    base = day.device.type == "cuda"
    hidden, layers = (768, 12) if base else (64, 2)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.?"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
    words += ["word", "answers", "question", "what"]
    folder = day.folder / kind
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    shape = transformers.BertConfig(
        vocab_size=len(words), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden, max_position_embeddings=positions,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, kind)(shape).save_pretrained(folder)
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=positions).save_pretrained(folder)
    return folder
