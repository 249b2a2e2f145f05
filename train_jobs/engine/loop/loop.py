"""The training loop: batches -> loss -> accumulate -> reduce once -> clip -> optimizer -> report, validate, checkpoint.

It takes the task through two small protocols (`engine.task`) and knows nothing of what is trained. Random numbers of a
step are a function of (seed, step, rank), so a resumed run draws what an undisturbed one would have drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from train_jobs.config import ProfileConfig, StorageError, TrainConfig, TrainingError
from train_jobs.engine.checkpoint.cadence import Cadence
from train_jobs.engine.checkpoint.checkpoints import Checkpoint, CheckpointStore
from train_jobs.engine.checkpoint.optimizer_state import carried_over
from train_jobs.engine.loop.accumulation import accumulate
from train_jobs.engine.loop.ahead import Ahead
from train_jobs.engine.loop.budget import TimeBudget
from train_jobs.engine.loop.gradients import FlatGradients
from train_jobs.engine.loop.loop_state import Agreement, Differentiated, LoopState
from train_jobs.engine.loop.probe import largest_micro_batch, no_trace, try_micro_batch
from train_jobs.engine.loop.sharding import ShardedOptimizer
from train_jobs.engine.loop.task import Batch, Task
from train_jobs.engine.reporting.meter import Meter
from train_jobs.engine.reporting.metrics import MetricsLog, Progress
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime import determinism, devices, out_of_memory
from train_jobs.engine.runtime import precision as precision_module
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.optim.groups import LR_SCALE


class Loop:
    """Trains a task.

    Args:
        task: what is trained.
        optimizer: over the task's parameters; its groups' `lr` is set by `schedule`.
        sharded: each process keeps the optimizer's state of a share of the tensors only.
        schedule: optimizer step (from 0), share of the time budget used -> learning rate.
        cadence: when a checkpoint is due; one more comes after the last step.
        checkpoint_extra: stored in every checkpoint's state.json beside the loop's own state.
        budget: the step that begins once it is used up is the last. None: only the number of steps ends training.
        profiler: records some of the steps. None: none.
        peak_flops: floating-point operations a second that all processes' devices could make. None: not known.
        prefetch: a thread makes batches one step ahead. None: where a GPU leaves the host time for it.
        best_by: figure of a validation that is lowest in the best.
        patience: so many validations in a row that are none of the best end training. None: only the steps do.
    """

    def __init__(
        self,
        task: Task[Any],
        *,
        world: World,
        config: TrainConfig,
        precision: str,
        optimizer: torch.optim.Optimizer,
        sharded: bool = False,
        schedule: Callable[[int, float], float],
        max_grad_norm: float | None,
        validate_every: int,
        cadence: Cadence,
        checkpoints: CheckpointStore,
        checkpoint_extra: Mapping[str, Any],
        metrics: MetricsLog,
        progress: Progress,
        stop: StopRequest,
        budget: TimeBudget | None = None,
        profiler: StepProfiler | None = None,
        peak_flops: float | None = None,
        prefetch: bool | None = None,
        best_by: Callable[[Mapping[str, float]], float] = lambda found: found["loss"],
        patience: int | None = None,
    ) -> None:
        self.task, self.world, self.config, self.precision = task, world, config, precision
        self.schedule, self.max_grad_norm = schedule, max_grad_norm
        self.validate_every, self.cadence = validate_every, cadence
        self.best_by, self.patience = best_by, patience
        self.checkpoints, self.checkpoint_extra = checkpoints, dict(checkpoint_extra)
        self.metrics, self.progress, self.stop = metrics, progress, stop
        self.profiler = profiler or StepProfiler(ProfileConfig(), world, None)
        self.budget = budget or TimeBudget(None)
        self.peak_flops = peak_flops
        self.prefetch = world.device.type == "cuda" if prefetch is None else prefetch
        self.gradients = FlatGradients([p for p in task.model.parameters() if p.requires_grad])
        self.optimizer = ShardedOptimizer(optimizer, self.gradients, world) if sharded and world.size > 1 else optimizer
        self.scaler = precision_module.LossScale.for_precision(precision)
        self.state = LoopState(micro_batch_size=None if config.micro_batch_size == "auto" else config.micro_batch_size)
        self.last_validation: dict[str, float] = {}
        self._next_batch: Callable[[dict[str, int]], tuple[Batch, dict[str, int]]] = task.train_batch
        self._meter = Meter()
        self._skips_in_a_row = 0
        self._saved_step = 0
        self._save_seconds = 0.0
        self._checkpoint_metrics: dict[str, float] = {}
        self._validated: tuple[int, float] | None = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint: weights, moments, cursor, loss scale, what is still to be reported."""
        self.task.model.load_state_dict(checkpoint.weights(), strict=True)
        self.optimizer.load_state_dict(checkpoint.optimizer())
        stored = checkpoint.state()
        self.state = LoopState(**{**vars(self.state), **stored["loop"]})
        self._meter = Meter.restore(stored["meter"], self.world)
        if stored["precision"] == self.precision:  # "auto" may have become another one on another machine
            self.scaler.scale, self.scaler.good_steps = self.state.loss_scale, self.state.good_steps
        self._saved_step = self.state.step

    @property
    def micro_batch_size(self) -> int:
        """Sequences at once."""
        assert self.state.micro_batch_size is not None, "find_micro_batch comes first"
        return self.state.micro_batch_size

    def find_micro_batch(self, sizes: Sequence[int]) -> None:
        """Finds the largest of `sizes` that fits on every process, unless there is a micro batch already.

        Raises:
            OutOfMemoryError: not even the smallest does.
        """
        if self.state.micro_batch_size is not None:
            return
        self.state.micro_batch_size = largest_micro_batch(
            self.task, sizes, world=self.world, precision=self.precision, later_bytes=self._later_bytes()
        )
        self.gradients.zero_()

    def cost_of_determinism(self) -> tuple[float, float]:
        """Seconds of a micro batch's forward and backward pass, with deterministic algorithms and without."""
        with no_trace(self.task, self.world):
            found = determinism.cost(
                lambda: try_micro_batch(self.task, self.micro_batch_size, world=self.world, precision=self.precision),
                self.world.device,
            )
        self.gradients.zero_()
        return found

    def _later_bytes(self) -> int:
        """Memory of the device that is not taken yet: two moments, as AdamW and LAMB keep, and a checkpoint's copy."""
        weights = len(self.gradients.flat)
        own = self.optimizer.own_elements if isinstance(self.optimizer, ShardedOptimizer) else weights
        moments = 0 if self.state.step else 2 * own
        copied = self.world.is_main and self.world.device.type == "cpu" and self.checkpoints.asynchronous
        return self.gradients.flat.element_size() * (moments + (3 * weights if copied else 0))

    def begin_phase(self, checkpoint: Checkpoint) -> None:
        """Starts at step 0 from another run's checkpoint, of which weights and moments are kept and nothing else.

        Step and schedule, data cursor and loss scale begin anew, and so do the optimizer's own counters, as between
        NVIDIA's phases (DeepLearningExamples, PyTorch BERT, run_pretraining.py: with --phase2 each parameter's step is
        set to the global step, which is then 0). A bias correction so takes moments that have grown long ago for young
        ones: the first direction is (1 - b2)^(1/2) / (1 - b1), a third, as long as it would be, and they reach full
        length within some 1 / (1 - b2) steps. LAMB's trust ratio undoes it for matrices.
        """
        self.task.model.load_state_dict(checkpoint.weights(), strict=True)
        self.optimizer.load_state_dict(carried_over(checkpoint.optimizer(), self.optimizer.state_dict()))

    def run(self) -> None:
        """Trains to the last step, then validates and saves. However it ends, no checkpoint is left half-written.

        Raises:
            TrainingError: a loss or gradient that is not finite and that no loss scale can mend.
            OutOfMemoryError: memory ran out, and smaller micro batches cannot mend it.
            StorageError: a checkpoint could not be written.
            Preempted: after SIGTERM, with a checkpoint committed.
        """
        self.cadence.restart()
        self.budget.start(self.state.seconds)
        try:
            with Ahead(self.task.train_batch) if self.prefetch else nullcontext(self.task.train_batch) as source:
                self._next_batch = source
                self._train()
        except BaseException:
            try:
                self._collect(wait=True)
            except StorageError as problem:  # not what ended the run, which goes on to be told
                self.progress.line(str(problem))
            raise

    def _train(self) -> None:
        while not self.ended:
            with self.profiler.step(self.state.step + 1):
                finite = self._step()
            if not finite:
                continue
            step = self.state.step
            if step % self.config.log_every == 0 or self.ended:
                with self._after("report"):
                    self._report()
            best = False
            if step % self.validate_every == 0 or self.ended:
                with self._after("validation"):
                    best = self._validate()
            if best or self.cadence.at_step(step) or self.ended:
                with self._after("checkpoint"):
                    self.save()
        self.profiler.close()
        if not self.last_validation:  # resumed at the very end: the summary still needs the figures
            with self._after("validation"):
                self._measure()
        with self._after("checkpoint"):
            self._collect(wait=True)

    @property
    def ended(self) -> bool:
        """True after the last step."""
        out_of_patience = self.patience is not None and self.state.stale >= self.patience
        return self.state.out_of_time or out_of_patience or self.state.step >= self.config.steps

    def _doing(self, stage: str) -> AbstractContextManager[None]:
        """The body is a stage of the step that is being made."""
        return self.world.activity.doing(stage, step=self.state.step + 1)

    def _after(self, stage: str) -> AbstractContextManager[None]:
        """The body comes after the last step made."""
        return self.world.activity.doing(stage, step=self.state.step)

    def save(self) -> float:
        """Begins a checkpoint of the last finished step, unless there is one; returns the seconds until it went on."""
        if self._saved_step == self.state.step:
            return 0.0
        started = time.perf_counter()
        meter, optimizer = self._meter.gather(self.world), self.optimizer.state_dict()
        if self.world.is_main:
            self._collect(wait=True)
            self.metrics.sync()
            self.state.loss_scale, self.state.good_steps = self.scaler.scale, self.scaler.good_steps
            self.state.seconds = self.budget.spent()
            step, loss = self._validated or (None, math.nan)
            self.checkpoints.save(
                self.state.step,
                weights=self.task.model.state_dict(),
                optimizer=optimizer,
                state={
                    "loop": vars(self.state),
                    "meter": meter,
                    "world_size": self.world.size,
                    "precision": self.precision,
                    **self.checkpoint_extra,
                },
                validation_loss=loss if step == self.state.step and math.isfinite(loss) else None,
            )
        self._saved_step = self.state.step
        self.cadence.restart()
        self._save_seconds = time.perf_counter() - started
        return self._save_seconds

    def _collect(self, *, wait: bool) -> None:
        """Tells of the last checkpoint once it is committed.

        Raises:
            StorageError: it could not be written.
        """
        done = self.checkpoints.collect(wait=wait)
        if done is None:
            return
        self._checkpoint_metrics = {
            "checkpoint_seconds": done.seconds,
            "checkpoint_wait_seconds": self._save_seconds,
        }
        self.progress.line(
            f"checkpoint at step {done.step}: {done.bytes / 1e6:.1f} MB in {done.seconds:.1f} s,"
            f" training waited {self._save_seconds:.2f} s"
        )

    def _step(self) -> bool:
        """One optimizer step over one global batch; False if its gradient was not finite and fp16 skipped it."""
        self._collect(wait=False)
        started = time.perf_counter()
        with self._doing("data"):
            batch, cursor = self._next_batch(self.state.cursor)
            counts = self.task.counts(batch)
        waited = time.perf_counter() - started
        with self._doing("agreement"):
            agreed = self._agree(counts, batch.tokens)
        if agreed.stop:
            self._stop()
        if agreed.checkpoint_due:
            with self._after("checkpoint"):
                started += self.save()
        found = self._differentiate(batch, agreed.totals)
        if found.finite:
            with self._doing("optimizer"):
                rate = self.schedule(self.state.step, self.budget.share(agreed.seconds))
                for group in self.optimizer.param_groups:
                    group["lr"] = rate * group.get(LR_SCALE, 1.0)
                self.optimizer.step()
            self.state.step += 1
            self.state.out_of_time = self.budget.share(agreed.seconds) >= 1
            self._skips_in_a_row = 0
        else:
            self._skip(found)
        self.scaler.update(found.finite, dynamic=self.precision == "fp16")
        self.state.cursor = cursor
        self._meter.add(
            found.sums if found.finite else None,
            time.perf_counter() - started,
            data_seconds=waited,
            tokens=agreed.tokens,
            norm=float(found.norm),
        )
        return found.finite

    def _agree(self, counts: list[float], tokens: int) -> Agreement:
        """Sums counts over all processes, and with them all that one process decides and every one must know."""
        main = self.world.is_main
        due = main and not self.checkpoints.writing and self.cadence.by_clock()
        header = torch.tensor(
            [*counts, tokens, float(self.stop.asked), float(due), self.budget.spent() if main else 0.0],
            dtype=torch.float64,
            device=self.world.device,
        )
        *_, all_tokens, stop_requests, due_requests, seconds = self.world.sum_(header).tolist()
        found = header[: len(counts)]
        totals = torch.where(found > 0, found, 1.0).to(torch.float32)  # less than 1 where they are sums of weights
        return Agreement(totals, all_tokens, stop_requests > 0, due_requests > 0, seconds)

    def _stop(self) -> None:
        """Stops all processes at the same step, once its checkpoint is committed.

        Raises:
            Preempted: always.
        """
        with self._after("checkpoint"):
            self.save()
            self._collect(wait=True)
            self.world.barrier()  # a process that ends has its launcher end the others
        raise self.stop.ending()

    def _differentiate(self, batch: Batch, totals: torch.Tensor) -> Differentiated:
        """Leaves the gradients of the global batch, reduced and clipped, in the optimizer's hands.

        Where memory runs out, on whichever process, all begin again with half the micro batch and the same random
        numbers: as if the micro batch had been that before.

        Raises:
            OutOfMemoryError: half the micro batch would be no sequence, or another recipe.
        """
        while True:
            torch.manual_seed(_mix(self.config.seed, self.state.step + self.state.skipped, self.world.rank))
            self.gradients.zero_()
            made = self._attempt(batch, totals)
            with self._doing("reduction"):
                loss = self.gradients.reduce_(self.world, made[0] if made else None, scale=self.scaler.scale)
                if made and loss is not None:
                    norm = self.gradients.clip_(self.max_grad_norm)
                    return Differentiated(made[1], loss, norm, finite=bool(torch.isfinite(norm) & torch.isfinite(loss)))
            self._halve_micro_batch()

    def _attempt(self, batch: Batch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Forward and backward over this process's share, as `accumulate`; None if memory ran out and was let go."""
        try:
            return accumulate(
                self.task,
                batch,
                totals,
                micro_batch_size=self.micro_batch_size,
                precision=self.precision,
                scale=self.scaler.scale,
                world=self.world,
                step=self.state.step + 1,
            )
        except (RuntimeError, MemoryError) as problem:
            if not out_of_memory.is_exhausted(problem):
                raise
        out_of_memory.release(
            self.world.device
        )  # only here: until the except clause is left, its traceback holds tensors
        return None

    def _halve_micro_batch(self) -> None:
        """Makes the micro batch smaller, for the rest of the run."""
        before = self.micro_batch_size
        if before == 1 or self.config.loss_normalization == "micro_batch":
            can_shard = self.world.size > 1 and not isinstance(self.optimizer, ShardedOptimizer)
            raise out_of_memory.no_smaller(
                before, step=self.state.step + 1, device=self.world.device, can_shard=can_shard
            )
        self.state.micro_batch_size = -(-before // 2)
        if self.world.is_main:
            self.progress.line(
                f"warning: out of memory in step {self.state.step + 1} with micro batches of {before} sequences;"
                f" they are of {self.state.micro_batch_size} from here on"
            )

    def _skip(self, found: Differentiated) -> None:
        """A loss or gradient that is not finite: halve the scale and go on, or stop where that cannot help."""
        self.state.skipped += 1
        self._skips_in_a_row += 1
        hopeless = self.precision != "fp16" or self.scaler.at_floor
        if not hopeless and self._skips_in_a_row < self.config.max_consecutive_skips:
            return
        last = self.checkpoints.newest()
        what = "gradient" if math.isfinite(found.loss) else "loss"
        raise TrainingError(
            f"the {what} of step {self.state.step + 1} is not finite",
            facts={
                "loss": float(found.loss),
                "gradient norm": float(found.norm),
                "precision": self.precision,
                "loss scale": self.scaler.scale,
                "skipped in a row": self._skips_in_a_row,
                "last checkpoint": last.folder if last else "none",
            },
            fix="start a new run with a lower --set optimizer.learning_rate, or with --set train.precision=fp32",
        )

    def _report(self) -> None:
        """Reports what happened since the last report."""
        meter, self._meter = self._meter, Meter()
        assert meter.sums is not None
        sums = self.world.sum_(meter.sums.to(torch.float64)).tolist()
        metrics = {
            **{f"train_{name}": value for name, value in self.task.metrics(sums).items()},
            "learning_rate": max(group["lr"] for group in self.optimizer.param_groups),
            **meter.rates(
                global_batch_size=self.config.global_batch_size,
                flops=self.task.flops,
                peak_flops=self.peak_flops,
            ),
            "peak_memory_gb": devices.memory_bytes(self.world.device) / 1e9,
        }
        metrics |= self._checkpoint_metrics
        self._checkpoint_metrics = {}
        if self.precision == "fp16":
            metrics |= {"loss_scale": self.scaler.scale, "skipped_steps": float(self.state.skipped)}
        if self.world.is_main:
            self.metrics.report(self.state.step, metrics)
            left = (self.config.steps - self.state.step) * meter.seconds / meter.steps
            left = self.budget.seconds_left(self.budget.spent(), left)
            self.progress.step(self.state.step, metrics, seconds_left=left)

    def _measure(self) -> dict[str, float]:
        """Validates without reporting."""
        self.task.model.eval()
        with torch.no_grad(), precision_module.autocast(self.precision, self.world.device):
            self.last_validation = self.task.validate(self.micro_batch_size)
        return self.last_validation

    def _validate(self) -> bool:
        """Validates and reports; True if the loss is one of the lowest that are kept."""
        found = self._measure()
        loss = self.best_by(found)
        self._validated = self.state.step, loss
        if self.world.is_main:
            self.metrics.report(self.state.step, {f"validation_{name}": value for name, value in found.items()})
            text = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
            self.progress.line(f"validation at step {self.state.step}: {text}")
        best = self.cadence.is_best(loss, self.state.best)
        if best:
            self.state.best = sorted([*self.state.best, loss])[: self.cadence.keep_best]
        self.state.stale = 0 if best else self.state.stale + 1
        return best


def _mix(seed: int, step: int, rank: int) -> int:
    """A well-spread 63-bit seed for (seed, step, rank): splitmix64's finaliser (Steele et al. 2014)."""
    mask = (1 << 64) - 1
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB + 1) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 1
