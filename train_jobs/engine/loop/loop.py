"""The training loop: batches -> loss -> accumulate -> reduce once -> clip -> optimizer -> report, validate, checkpoint.

It uses the task through two small protocols (`engine.loop.task`) and knows nothing of model or data. Random numbers
depend only on (seed, step, rank), so a resumed run draws the same ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import zip_longest
from typing import Any

import torch

from train_jobs.config import StorageError, TrainingError
from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.checkpoint.serialization import transfer_state
from train_jobs.engine.loop.batch_process import BatchProcess, HasMaker
from train_jobs.engine.loop.gradients import FlatGradients, Passes, accumulate, stage
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.loop.probe import largest_micro_batch, preserving_state, try_micro_batch
from train_jobs.engine.loop.sharding import ShardedOptimizer
from train_jobs.engine.loop.state import Agreed, Agreement, BackwardResult, LoopState, Meter, Share, step_seed
from train_jobs.engine.loop.task import Cursor, Prefetcher, TrainingTask
from train_jobs.engine.runtime.devices import (
    LossScale,
    autocast,
    is_out_of_memory,
    memory_bytes,
    micro_batch_error,
    release_memory,
    synchronize,
    time_determinism,
)
from train_jobs.engine.runtime.distributed import World
from train_jobs.optim.factory import LR_SCALE
from train_jobs.optim.lamb import Lamb

NO_STEP = "no step was made, so there is no checkpoint; the same command starts training"


class Loop:
    """Trains a task on all processes.

    Args:
        task: model, batches and loss.
        optimizer: over the task's parameters; the policy's schedule sets the `lr` of its groups.
        world: the processes that train together.
        policy: settings.
        services: collaborators.
    """

    def __init__(
        self,
        task: TrainingTask[Any],
        optimizer: torch.optim.Optimizer,
        world: World,
        policy: LoopPolicy,
        services: LoopServices,
    ) -> None:
        self.task, self.world, self.policy, self.services = task, world, policy, services
        # Before the optimizer is wrapped: the sharded one stores updated weights in the gradients' buffer.
        self.gradients = FlatGradients([p for p in task.model.parameters() if p.requires_grad])
        if policy.config.overlap_all_reduce and world.size > 1:
            self.gradients.overlap_reduction(world)
        shard = policy.sharded and world.size > 1
        self.optimizer = ShardedOptimizer(optimizer, self.gradients, world) if shard else optimizer
        self.scaler = LossScale.for_precision(policy.precision)
        self.state = LoopState(micro_batch_size=self.given_micro_batch)
        self.last_validation: dict[str, float] = {}
        self._next_share: Callable[[Cursor], tuple[Share, Cursor]] = self._make_share
        self._batch_process: BatchProcess | None = None
        ahead = policy.agree_ahead
        self._agrees_ahead = (world.device.type == "cuda" and world.size > 1) if ahead is None else ahead
        self._ahead: tuple[Cursor, Agreed] | None = None
        self._meter = Meter()
        self._skips_in_a_row = self._saved_step = 0
        self._save_seconds = 0.0
        self._checkpoint_metrics: dict[str, float] = {}
        self._validated: tuple[int, float] | None = None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore weights, moments, cursor, loss scale and unreported measurements from a checkpoint.

        Args:
            checkpoint: a checkpoint of the same model and optimizer, written by any number of processes.
        """
        self.task.model.load_state_dict(checkpoint.weights(), strict=True)
        self.optimizer.load_state_dict(checkpoint.optimizer())
        stored = checkpoint.state()
        self.state = LoopState(**{**vars(self.state), **stored["loop"]})
        self._meter = Meter.restore(stored["meter"], self.world)
        if stored["precision"] == self.policy.precision:  # "auto" may mean another one on this machine
            self.scaler.scale, self.scaler.good_steps = self.state.loss_scale, self.state.good_steps
        self._saved_step = self.state.step

    @property
    def given_micro_batch(self) -> int | None:
        """Sequences in one pass that the configuration gives; None: found before the first step."""
        size = self.policy.config.on_device(on_cpu=self.world.device.type == "cpu").micro_batch_size
        return size if isinstance(size, int) else None

    @property
    def micro_batch_origin(self) -> str:
        """Origin of the micro batch as text, such as `auto, the default on GPUs`; empty if a number is configured."""
        reason = self.policy.config.micro_batch_reason(on_cpu=self.world.device.type == "cpu")
        return ", ".join(part for part in ("auto" if self.given_micro_batch is None else "", reason) if part)

    @property
    def micro_batch_size(self) -> int:
        """Sequences in one pass."""
        assert self.state.micro_batch_size is not None, "find_micro_batch comes first"
        return self.state.micro_batch_size

    def find_micro_batch(self, sizes: Sequence[int]) -> None:
        """Set the micro batch to the largest of `sizes` that fits on every process, unless it is known.

        Args:
            sizes: candidates in sequences, the largest first, the same on every process.

        Raises:
            OutOfMemoryError: not even the smallest fits.
        """
        if self.state.micro_batch_size is not None:
            return
        self.state.micro_batch_size = largest_micro_batch(
            self.task, sizes, world=self.world, precision=self.policy.precision, later_bytes=self._later_bytes()
        )
        self.gradients.zero_()

    def cost_of_determinism(self) -> tuple[float, float] | None:
        """Measure a micro batch's forward and backward pass with deterministic algorithms and without.

        Returns:
            Seconds of both. None: the micro batch does not fit; the first step halves it.
        """
        found = None
        with preserving_state(self.task, self.world):
            try:
                found = time_determinism(
                    lambda: try_micro_batch(
                        self.task, self.micro_batch_size, world=self.world, precision=self.policy.precision
                    ),
                    self.world.device,
                )
            except (RuntimeError, MemoryError) as problem:
                if not is_out_of_memory(problem):
                    raise
        if found is None:
            release_memory(self.world.device)
        self.gradients.zero_()
        return found

    def _later_bytes(self) -> int:
        """Return the bytes that this process will allocate after the search for a micro batch."""
        # The search runs before the first update, when neither the two moments of AdamW and LAMB nor the checkpoint's
        # copy of weights and moments (on the host, so it counts on a CPU only) exist. Without them in the sum, the
        # micro batch fits in the search and runs out of memory at step 1 or at the first checkpoint. LAMB's temporary
        # memory is needed while no activations are: counting both is a little too careful.
        weights = len(self.gradients.flat)
        own = self.optimizer.own_elements if isinstance(self.optimizer, ShardedOptimizer) else weights
        optimizer = self.optimizer.inner if isinstance(self.optimizer, ShardedOptimizer) else self.optimizer
        moments = 0 if self.state.step or optimizer.state else 2 * own  # an earlier phase's moments exist at step 0
        copied = self.world.is_main and self.world.device.type == "cpu" and self.services.checkpoints.asynchronous
        gpu = self.world.device.type == "cuda"
        temporary = optimizer.temporary_bytes if gpu and isinstance(optimizer, Lamb) else 0
        return temporary + self.gradients.flat.element_size() * (moments + (3 * weights if copied else 0))

    def begin_phase(self, checkpoint: Checkpoint) -> None:
        """Start at step 0 from weights and moments of another run's checkpoint.

        Step, schedule, data cursor and loss scale are reset, and so are the counters of the optimizer, as between
        NVIDIA's phases (DeepLearningExamples, PyTorch BERT, run_pretraining.py: with --phase2 each parameter's step is
        set to the global step, which is then 0). Bias correction thus treats grown moments as young ones: the first
        update is (1 - b2)^(1/2) / (1 - b1), a third, as long as without it, and full length is reached within some
        1 / (1 - b2) steps. LAMB's trust ratio undoes this for matrices.
        """
        self.task.model.load_state_dict(checkpoint.weights(), strict=True)
        self.optimizer.load_state_dict(transfer_state(checkpoint.optimizer(), self.optimizer.state_dict()))

    def run(self) -> None:
        """Train to the last step, then validate and save; wait for a checkpoint in progress even on an error.

        Raises:
            TrainingError: a loss or gradient is not finite, and no loss scale can fix it.
            OutOfMemoryError: memory ran out, and no smaller micro batch can be tried.
            StorageError: a checkpoint could not be written.
            Preempted: SIGTERM, Ctrl-C or an eviction stopped the run; a checkpoint is committed.
        """
        self.services.cadence.restart()
        self.services.budget.start(self.state.seconds)
        try:
            with self.prefetching():
                self._train()
        except BaseException:
            try:
                self._collect(wait=True)
            except StorageError as problem:  # printed only: the error that ended the run must be raised
                self.services.progress.line(str(problem))
            raise

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Make the shares of the next steps ahead during the body, if the policy or the device wants that."""
        on_gpu = self.world.device.type == "cuda"
        if not (on_gpu if self.policy.prefetch is None else self.policy.prefetch):
            yield
            return
        separate = on_gpu if self.policy.batch_process is None else self.policy.batch_process
        with ExitStack() as stack:
            if separate and isinstance(self.task, HasMaker):
                process = BatchProcess(self.task, pinned=on_gpu, warn=self.services.progress.line)
                self._batch_process = stack.enter_context(process)
            self._next_share = stack.enter_context(Prefetcher(self._make_share))
            try:
                yield
            finally:
                self._next_share, self._batch_process = self._make_share, None

    def _train(self) -> None:
        while not self.ended:
            with self.services.profiler.step(self.state.step + 1):
                finite = self._step()
            if not finite:
                continue
            step = self.state.step
            reports = step % self.policy.config.log_every == 0 or self.ended
            if reports:
                with self._after("report"):
                    self._report()
            # Validation comes before the checkpoint of the same step, whose COMMIT.json stores the loss of its weights.
            best = False
            validates = step % self.policy.validate_every == 0 or self.ended
            if validates and not reports:
                self._settle()
            if validates:
                with self._after("validation"):
                    best = self._validate()
                if self.ended and not reports:  # ended by patience, which depends on the validation
                    with self._after("report"):
                        self._report()
            if best or self.services.cadence.at_step(step) or self.ended:
                if not (reports or validates):
                    self._settle()
                with self._after("checkpoint"):
                    self.save()
        self.services.profiler.close()
        if not self.last_validation:  # resumed after the last step: the summary still needs the figures
            with self._after("validation"):
                self._measure()
        with self._after("checkpoint"):
            self._collect(wait=True)
            if self.world.is_main and self.state.step:
                # again: a process that was killed after its last commit did not delete what that commit replaced
                self.services.checkpoints.prune(self.state.step)

    def _settle(self) -> None:
        """Wait until the device has done the last step, and count the time as training time."""
        # The optimizer's work is only queued when a step ends: without this, its time would be that of a validation.
        started = time.perf_counter()
        synchronize(self.world.device)
        self._meter.add_wait(time.perf_counter() - started)

    @property
    def ended(self) -> bool:
        """Whether the last step is done."""
        return self.state.out_of_time or self._out_of_patience or self.state.step >= self.policy.config.steps

    @property
    def _out_of_patience(self) -> bool:
        return self.policy.patience is not None and self.state.stale >= self.policy.patience

    def _doing(self, stage: str) -> AbstractContextManager[None]:
        """Return the context of a stage of the current step."""
        return self.world.activity.doing(stage, step=self.state.step + 1)

    def _after(self, stage: str) -> AbstractContextManager[None]:
        """Return the context of a stage after the last finished step."""
        return self.world.activity.doing(stage, step=self.state.step)

    def save(self) -> float:
        """Start the checkpoint of the last finished step, unless it exists; every process must call it.

        Returns:
            The seconds that training waited.
        """
        if self._saved_step == self.state.step:
            return 0.0
        started = time.perf_counter()
        # These two contain collectives, so they run on every process, before the branch for the main one.
        meter, optimizer = self._meter.gather(self.world), self.optimizer.state_dict()
        if self.world.is_main:
            self._collect(wait=True)
            # Reports must reach the disk before the checkpoint does: a resumed run drops reports after its checkpoint
            # and does not repeat those before it.
            self.services.metrics.sync()
            self.state.loss_scale, self.state.good_steps = self.scaler.scale, self.scaler.good_steps
            self.state.seconds = self.services.budget.spent()
            step, loss = self._validated or (None, math.nan)
            self.services.checkpoints.save(
                self.state.step,
                weights=self.task.model.state_dict(),
                optimizer=optimizer,
                state={
                    "loop": vars(self.state),
                    "meter": meter,
                    "world_size": self.world.size,
                    "precision": self.policy.precision,
                    **self.policy.checkpoint_extra,
                },
                # The loss of other weights would make `keep_best` keep the wrong checkpoint; JSON has no NaN.
                validation_loss=loss if step == self.state.step and math.isfinite(loss) else None,
            )
        self._saved_step = self.state.step
        self.services.cadence.restart()
        self._save_seconds = time.perf_counter() - started
        return self._save_seconds

    def _collect(self, *, wait: bool) -> None:
        """Report the last checkpoint once it is committed.

        Raises:
            StorageError: it could not be written.
        """
        done = self.services.checkpoints.collect(wait=wait)
        if done is None:
            return
        self._checkpoint_metrics = {
            "checkpoint_seconds": done.seconds,
            "checkpoint_wait_seconds": self._save_seconds,
        }
        self.services.progress.line(
            f"checkpoint at step {done.step}: {done.bytes / 1e6:.1f} MB in {done.seconds:.1f} s,"
            f" training waited {self._save_seconds:.2f} s"
        )

    def _step(self) -> bool:
        """Make one optimizer step over a global batch; return False if fp16 skipped it: its gradient was not finite."""
        self._collect(wait=False)
        started, idle = time.perf_counter(), self.world.activity.waited
        # The new cursor is stored at the end of the step, so a checkpoint of a stop below repeats this batch.
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == self.state.cursor:
            (share, cursor, agreed, _), waited = ahead[1], 0.0  # the step before has counted its wait
        else:
            share, cursor, agreed, waited = self._agree_on(self.state.cursor)
        # Stop and checkpoint come before the batch is used: the state is still exactly that after the last step.
        if agreed.stop:
            self._stop()
        if agreed.checkpoint_due:
            synchronize(self.world.device)  # the optimizer's queued work is training, not part of the checkpoint
            with self._after("checkpoint"):
                saving = self.world.activity.waited
                started += self.save()  # waiting for a disk must not lower the reported speed
                idle += self.world.activity.waited - saving
        found = self._compute_gradients(share, agreed.totals, following=cursor)
        if self._ahead:
            waited += self._ahead[1].waited
        if found.figures.finite:
            with self._doing("optimizer"):
                # the main process's clock, from the agreement: with clocks of their own, ranks would diverge
                rate = self.policy.schedule(self.state.step, self.services.budget.share(agreed.seconds))
                for group in self.optimizer.param_groups:
                    group["lr"] = rate * group.get(LR_SCALE, 1.0)
                self.optimizer.step()
            self.state.step += 1
            self.state.out_of_time = self.services.budget.share(agreed.seconds) >= 1
            self._skips_in_a_row = 0
        else:
            # `step` stays: a skipped step must not advance the schedule or the optimizer's counters. The cursor below
            # moves on, since the same batch would overflow again.
            self._skip(found)
        self.scaler.update(found.figures.finite, dynamic=self.policy.precision == "fp16")
        self.state.cursor = cursor
        seconds = time.perf_counter() - started
        self._meter.add(
            found.sums if found.figures.finite else None,
            seconds,
            data_seconds=waited,
            sequences=agreed.sequences,
            tokens=agreed.tokens,
            norm=found.figures.norm,
            busy=seconds - (self.world.activity.waited - idle),
        )
        return found.figures.finite

    def _make_share(self, cursor: Cursor) -> tuple[Share, Cursor]:
        """Return this process's share of the global batch at a cursor, with its counts; a thread may call it."""
        size, staged = self.micro_batch_size, None
        if self._batch_process is not None and (made := self._batch_process.make(cursor, size)) is not None:
            return Share(made.batch, made.counts, size, made.staged), made.following
        batch, following = self.task.train_batch(cursor)
        if self.world.device.type == "cuda":
            staged = stage(self.task, batch, size)
        return Share(batch, self.task.counts(batch), size, staged), following

    def _agree_on(self, cursor: Cursor) -> Agreed:
        """Make the share at a cursor and agree on it with all processes."""
        started = time.perf_counter()
        with self._doing("data"):
            share, following = self._next_share(cursor)
        waited = time.perf_counter() - started
        with self._doing("agreement"):
            return Agreed(share, following, self._agree(share), waited)

    def _agree(self, share: Share) -> Agreement:
        """Sum the counts of all shares, and share the decisions of the main process in the same collective."""
        main = self.world.is_main
        due = main and not self.services.checkpoints.writing and self.services.cadence.by_clock()
        # One collective for all numbers, since each has the latency of one. The sum serves as a broadcast: only the
        # main process contributes to the last two. fp64: fp32 cannot represent token counts above 2^24 exactly.
        header = torch.tensor(
            [
                *share.counts,
                len(share.batch),
                share.batch.tokens,
                float(self.services.stop.requested),
                float(due),
                self.services.budget.spent() if main else 0.0,
            ],
            dtype=torch.float64,
        )  # on the host: a GPU has nothing to do with it, and reading it there would wait for all queued work
        *_, sequences, tokens, stop_requests, due_requests, seconds = self.world.sum_(header).tolist()
        found = header[: len(share.counts)]
        # A global batch without a single label has a loss of 0 / 1, not NaN. Not clamp(min=1): with class weights a
        # total may be less than 1.
        totals = torch.where(found > 0, found, 1.0).to(torch.float32)
        return Agreement(totals, sequences, tokens, stop_requests > 0, due_requests > 0, seconds)

    def _stop(self) -> None:
        """Stop all processes at the same step, once its checkpoint is committed.

        Raises:
            Preempted: always.
        """
        with self._after("checkpoint"):
            self.save()
            self._collect(wait=True)
            self.world.barrier()  # torchrun kills the other ranks as soon as one exits
        raise self.services.stop.preempted(None if self.state.step else NO_STEP)

    def _compute_gradients(self, share: Share, totals: torch.Tensor, *, following: Cursor) -> BackwardResult:
        """Compute the gradients of the global batch, reduced over all processes and clipped.

        While the device computes, the processes agree on the next step, whose batch is at the cursor `following`.

        If memory runs out on any process, all start again with half the micro batch and the same random numbers, as if
        the micro batch had been that from the beginning.

        Raises:
            OutOfMemoryError: half a micro batch is less than a sequence, or changes the recipe.
        """
        while True:
            # Seeded for every attempt: a repeated step must draw the dropout of a run that had the smaller micro batch
            # all along. Skipped steps count, so the next batch does not reuse the random numbers of a skipped one.
            torch.manual_seed(step_seed(self.policy.config.seed, self.state.step + self.state.skipped, self.world.rank))
            self.gradients.zero_()
            made = self._attempt(share, totals)
            with self._doing("reduction"):
                # A process without memory joins the reduction too, with a flag: without it the others would wait in
                # the collective forever.
                self.gradients.reduce_(self.world, made[0] if made else None, scale=self.scaler.scale)
                norm = self.gradients.clip_(self.policy.max_grad_norm)
            if self._agrees_ahead and self._ahead is None and self.state.step + 1 < self.policy.config.steps:
                self._ahead = following, self._agree_on(following)
            with self._doing("reduction"):
                figures = self.gradients.read_figures(self.world, norm)
            if made and figures is not None:
                return BackwardResult(made[1], figures)
            self._halve_micro_batch()

    def _attempt(self, share: Share, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Call `accumulate` on this process's share; release memory and return None if it ran out."""
        size = self.micro_batch_size
        passes = Passes(
            size,
            self.policy.precision,
            self.scaler.scale,
            self.state.step + 1,
            share.staged if share.micro_batch_size == size else None,
            self.gradients.overlap,
        )
        try:
            return accumulate(self.task, share.batch, totals, passes, self.world)
        except (RuntimeError, MemoryError) as problem:
            if not is_out_of_memory(problem):
                raise
        # Not in the except clause: until it is left, the traceback references the tensors of the failed pass.
        release_memory(self.world.device)
        return None

    def _halve_micro_batch(self) -> None:
        """Halve the micro batch for the rest of the run."""
        before, step = self.micro_batch_size, self.state.step + 1
        # With the loss of the published recipes, the mean of the means of micro batches, another micro batch changes
        # the weights of predictions, so it is an error instead of a silent change of the recipe.
        if before == 1 or self.policy.config.loss_normalization == "micro_batch":
            can_shard = self.world.size > 1 and not isinstance(self.optimizer, ShardedOptimizer)
            raise micro_batch_error(before, step=step, device=self.world.device, can_shard=can_shard)
        self.state.micro_batch_size = -(-before // 2)
        if self.world.is_main:
            self.services.progress.line(
                f"warning: out of memory in step {step} with micro batches of {before} sequences;"
                f" continuing with {self.state.micro_batch_size}"
            )

    def _skip(self, found: BackwardResult) -> None:
        """Count a step whose loss or gradient is not finite.

        Raises:
            TrainingError: a lower loss scale cannot help, or too many steps in a row were skipped.
        """
        self.state.skipped += 1
        self._skips_in_a_row += 1
        # In bf16 and fp32, and at the lowest scale, an overflow does not come from the scale: skipping would continue
        # until the budget is spent.
        hopeless = self.policy.precision != "fp16" or self.scaler.at_floor
        if not hopeless and self._skips_in_a_row < self.policy.config.max_consecutive_skips:
            return
        last = self.services.checkpoints.newest()
        what = "gradient" if math.isfinite(found.figures.loss) else "loss"
        raise TrainingError(
            f"cannot continue training: the {what} of step {self.state.step + 1} is not finite",
            facts={
                "loss": found.figures.loss,
                "gradient norm": found.figures.norm,
                "precision": self.policy.precision,
                "loss scale": self.scaler.scale,
                "skipped in a row": self._skips_in_a_row,
                "last checkpoint": last.folder if last else "none",
            },
            fix="start a new run with a lower --set optimizer.learning_rate, or with --set train.precision=fp32",
        )

    def _report(self) -> None:
        """Report the measurements since the last report."""
        meter, self._meter = self._meter, Meter()
        assert meter.sums is not None
        started, idle = time.perf_counter(), self.world.activity.waited
        # All processes call this; after it only the main one reports. It waits for the optimizer of the last step,
        # whose work is only queued until here: that time belongs to the steps.
        sums = self.world.read(self.world.queue_sum_(meter.sums.to(torch.float64, copy=True)))
        meter.add_wait(time.perf_counter() - started, waited=self.world.activity.waited - idle)
        metrics = {
            **{f"train_{name}": value for name, value in self.task.metrics(sums).items()},
            "learning_rate": max(group["lr"] for group in self.optimizer.param_groups),
            **meter.rates(
                flops=self.task.flops,
                peak_flops=self.policy.peak_flops,
            ),
            **meter.slowest(self.world),
            "peak_memory_gb": memory_bytes(self.world.device) / 1e9,
        }
        metrics |= self._checkpoint_metrics
        self._checkpoint_metrics = {}
        if self.policy.precision == "fp16":
            metrics |= {"loss_scale": self.scaler.scale, "skipped_steps": float(self.state.skipped)}
        if self.world.is_main:
            self.services.metrics.report(self.state.step, metrics)
            left = (self.policy.config.steps - self.state.step) * meter.seconds / meter.steps
            left = self.services.budget.seconds_left(self.services.budget.spent(), left)
            self.services.progress.step(self.state.step, metrics, seconds_left=left)

    def _measure(self) -> dict[str, float]:
        """Validate without reporting; return the metrics, the same on every process."""
        self.task.model.eval()
        with torch.no_grad(), autocast(self.policy.precision, self.world.device):
            self.last_validation = self.task.validate(self.micro_batch_size)
        return self.last_validation

    def _validate(self) -> bool:
        """Validate and report; return whether the loss is among the lowest, whose checkpoints are kept."""
        found = self._measure()
        # every process decides the same without a collective: `validate` returns the same metrics on all of them
        loss = self.policy.best_by(found)
        self._validated = self.state.step, loss
        if self.world.is_main:
            self.services.metrics.report(
                self.state.step, {f"validation_{name}": value for name, value in found.items()}
            )
            text = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
            self.services.progress.line(f"validation at step {self.state.step}: {text}")
        best = self.services.cadence.is_best(loss, self.state.best)
        if best:
            kept = [*zip_longest(self.state.best, self.state.best_steps, fillvalue=0), (loss, self.state.step)]
            kept = sorted(kept)[: self.services.cadence.keep_best]  # of equal losses, the earlier step
            self.state.best, self.state.best_steps = [one[0] for one in kept], [one[1] for one in kept]
        self.state.stale = 0 if best else self.state.stale + 1
        if self._out_of_patience and self.world.is_main and self.state.step < self.policy.config.steps:
            self.services.progress.line(
                f"training ends at step {self.state.step} of {self.policy.config.steps}:"
                f" evaluation.patience={self.policy.patience} is used up"
            )
        return best
