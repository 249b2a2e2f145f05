"""The report of a pretraining: its key figures, its charts, and the expected range of its loss.

Users of the original recipes often ask whether their loss is normal (google-research/bert issues 90 and 649,
microsoft/AzureML-BERT issue 46). Charts therefore show the loss of chance and of word frequencies, and published
losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from orchestrator.reports.charts.axes import number, percent
from orchestrator.reports.charts.charts import Chart, Corridor, Line, Reference, Series, last_step
from orchestrator.reports.pages.page_parts import NONE_YET, TIMES, key_figure, key_figures
from orchestrator.reports.pages.run_report import RunReport, reported
from orchestrator.support.formatting import counted
from orchestrator.support.html import Markup, element
from train_jobs.artifacts.sequence_figures import SequenceFigures
from train_jobs.config.verdict import LossVerdict, margin_text, verdict

PAIRS = (  # measured both in training and on held-out text: metric, title, whether it is a share
    ("mlm_loss", "MLM loss (nats per token)", False),
    ("mlm_accuracy", "MLM accuracy", True),
    ("nsp_loss", "NSP loss (nats per pair)", False),
    ("nsp_accuracy", "NSP accuracy", True),
)
NVIDIA_LARGE = "large-nvidia-phase1"
NVIDIA_LARGE_LONG = "large-nvidia-phase2"
GOOGLE_BASE = "base-google"
# The loss curve in the README of NVIDIA's DeepLearningExamples, PyTorch/LanguageModeling/BERT, phase 1, read from a
# picture: step, sum of the losses of MLM and NSP.
CURVE = ((0, 11.0), (200, 7.8), (650, 6.4), (1000, 3.6), (2000, 2.1), (7038, 1.4))
STEP_TOLERANCE = 1.25  # factor of the step: the end of BERT-large's plateau depends on the seed and the text
LOSS_TOLERANCE = 0.08  # share of the loss: seeds differ by 2%, texts and the reading of the picture by more
PHASE_2 = Reference("NVIDIA's end (5 seeds, sd 0.023)", 1.265)  # the same README, its table of stability
PERPLEXITY_4 = Reference("Google's BERT-base, held out", math.log(4.0))  # google-research/bert issue 90
SHAPING = ("train.steps", "train.global_batch_size", "optimizer.learning_rate", "optimizer.name", "schedule.name")


class PretrainingReport(RunReport):
    """The report of a pretraining."""

    def results(self) -> Iterator[Markup]:
        """Yield the key figures, each with a value to compare it with."""
        figures = [self._mlm_loss(), self._unigram_entropy(), self._accuracy("MLM accuracy", "mlm")]
        objective = self.plan["job"]["objective"]
        if objective["next_sentence"] and ":" not in objective.get("name", ""):
            figures.append(self._accuracy("NSP accuracy", "nsp"))
        yield key_figures([*figures, self.throughput(), self._steps()])

    def charts(self) -> list[Chart]:
        """Return a chart of each metric that was reported."""
        return reported([*self._pairs(), *self.training_charts()])

    def plan_rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield model and batch: global = micro x accumulation x world, in sequences per optimizer step."""
        model, train, world = self.plan["job"]["model"], self.plan["job"]["train"], self.plan["world_size"]
        shape = (
            f"{model['num_hidden_layers']} layers of width {model['hidden_size']}, {model['num_attention_heads']}"
            f" attention heads, {self.plan['estimates']['parameters']:,} parameters (estimate)"
        )
        yield "Model", [shape]
        batch = f"{train['global_batch_size']:,}"
        if self.plan["accumulation_steps"] is None:
            reason = f", {self.plan['micro_batch_reason']}" if self.plan.get("micro_batch_reason") else ""
            size = self.result.get("micro_batch_size")
            taken = f", found: {size:,}" if size is not None else ""
            meaning = f" sequences a step on {counted(world, 'process', 'processes')}; micro batch: auto{reason}{taken}"
        else:
            factors = (train["micro_batch_size"], self.plan["accumulation_steps"], world)
            batch = f"{batch} = {TIMES.join(f'{factor:,}' for factor in factors)}"
            meaning = f" sequences a step: global = {TIMES.join(('micro', 'accumulation', 'world'))}"
        yield "Batch", [batch, element("span", meaning, class_="soft")]
        if train.get("batch_tokens") is not None:
            yield "Tokens of a batch", [f"{train['batch_tokens']:,}"]
        if (found := self.result.get("text_use") or self.plan.get("sequences")) is not None:
            yield "Sequences", [SequenceFigures.model_validate(found).text()]

    def _pairs(self) -> Iterator[Chart]:
        """Yield what is measured in training and on held-out text; where a loss was published, with it."""
        corridor, ends = published(self.plan)
        if corridor or ends:
            yield replace(self._pair("loss", "Loss, MLM and NSP (nats)"), corridor=corridor, references=ends)
        for metric, title, shares in PAIRS:
            chart = self._pair(metric, title, shares=shares)
            if metric == "mlm_loss":
                corridor = frequencies_alone(self.plan, self._entropy, last_step(self.series))
                chart = replace(chart, references=levels(self.plan, self._entropy), corridor=corridor)
            yield chart

    def _pair(self, metric: str, title: str, *, shares: bool = False) -> Chart:
        kinds = {"training": "train", "validation": "validation"}
        lines = (Line(kind, kind, self.series.get(f"{split}_{metric}", Series())) for kind, split in kinds.items())
        return Chart(title, tuple(lines), from_zero=shares, shares=shares)

    @property
    def _entropy(self) -> float | None:
        """Unigram entropy of the held-out text: the job's final figure, or that of its last validation."""
        last = self.series.get("validation_unigram_entropy", Series()).last
        found = self.result.get("validation_unigram_entropy", last[1] if last else None)
        return float(found) if found is not None else None

    def _mlm_loss(self) -> Markup:
        loss, where = self._validation("mlm_loss")
        if loss is None:
            return key_figure("Validation MLM loss", NONE_YET, where)
        lines = [f"nats, {where}"]
        if (entropy := self._entropy) is not None:
            error, _ = self._validation("unigram_margin_error")
            answer = verdict(loss, entropy, error)
            text = f"{margin_text(loss, entropy, error)}: {answer.value}"
            lines.append(element("dd", text, class_="good" if answer is LossVerdict.LEARNED else "bad"))
        lines += [element("dd", text, class_="soft") for text in self._losses_by_source()]
        return key_figure("Validation MLM loss", number(loss), *lines)

    def _losses_by_source(self) -> Iterator[str]:
        """Yield loss and unigram entropy of each source, if there are several."""
        prefix = "validation_mlm_loss."
        for name in sorted(name for name in {*self.series, *self.result} if name.startswith(prefix)):
            source = name.removeprefix(prefix)
            (loss, _), (entropy, _) = (self._validation(f"{what}.{source}") for what in ("mlm_loss", "unigram_entropy"))
            if loss is not None and entropy is not None:
                yield f"{source}: {number(loss)}, unigram entropy {number(entropy)}"

    def _unigram_entropy(self) -> Markup:
        if self._entropy is None:
            return key_figure("Unigram entropy", NONE_YET, "known once the run has validated")
        return key_figure("Unigram entropy", number(self._entropy), "nats, of the validated tokens")

    def _accuracy(self, label: str, head: str) -> Markup:
        share, where = self._validation(f"{head}_accuracy")
        base, _ = self._validation(f"{head}_base_rate")
        lines = [where] if base is None else [where, f"always the most frequent answer: {percent(base)}"]
        return key_figure(label, percent(share) if share is not None else NONE_YET, *lines)

    def _steps(self) -> Markup:
        done = self.result.get("steps", max(last_step(self.series), self.status.step or 0))
        train = self.plan["job"]["train"]
        sequences = self.result.get("sequences", done * train["global_batch_size"])
        lines = [f"of {train['steps']:,}", f"{sequences:,} sequences"]
        skipped = self.series.get("skipped_steps", Series()).last
        if skipped and skipped[1]:
            lines.append(f"{skipped[1]:,.0f} skipped for gradients that were not finite")
        return key_figure("Steps done", f"{done:,}", *lines)

    def _validation(self, metric: str) -> tuple[float | None, str]:
        """Return the final value on held-out text, or the last one so far; and when it was measured."""
        final = self.result.get(f"validation_{metric}")
        if final is not None:
            return (final, "on held-out text") if math.isfinite(final) else (None, "not finite on held-out text")
        last = self.series.get(f"validation_{metric}", Series()).last
        return (last[1], f"on held-out text, step {last[0]:,}") if last else (None, "not validated so far")


def levels(plan: Mapping[str, Any], entropy: float | None) -> tuple[Reference, ...]:
    """Return levels to compare the MLM loss with: that of equally likely pieces, and that of word frequencies.

    Args:
        plan: the plan, from `Plan.as_dict()`.
        entropy: unigram entropy of the held-out tokens, in nats; None: not known yet.
    """
    guess = _even_guess(plan)
    found = [Reference("even guess", guess)] if guess is not None else []
    found += [Reference("unigram entropy", entropy)] if entropy is not None else []
    found += [PERPLEXITY_4] if _as_published(plan, GOOGLE_BASE) else []
    return tuple(found)


def frequencies_alone(plan: Mapping[str, Any], entropy: float | None, last_step: int) -> Corridor | None:
    """Return the range of losses of a model that has not learned context: from unigram entropy to an even guess."""
    guess = _even_guess(plan)
    if guess is None or entropy is None or entropy >= guess:
        return None
    return Corridor("no context learned yet", ((0, entropy, guess), (max(last_step, 1), entropy, guess)))


def published(plan: Mapping[str, Any]) -> tuple[Corridor | None, tuple[Reference, ...]]:
    """Return the published losses of a recipe, for MLM and NSP together; empty if the recipe was changed."""
    if _as_published(plan, NVIDIA_LARGE):
        source = (
            "Corridor: NVIDIA's curve of the same recipe on Wikipedia and books, read off a picture, a quarter of the"
            f" steps sooner or later and {LOSS_TOLERANCE:.0%} above or below."
        )
        return Corridor("as published", _around(CURVE), source), ()
    return None, ((PHASE_2,) if _as_published(plan, NVIDIA_LARGE_LONG) else ())


def _even_guess(plan: Mapping[str, Any]) -> float | None:
    """Return the loss of random weights; None if training starts from others, or the vocabulary is given."""
    job, data = plan["job"], plan["job"]["data"]
    known = [job.get("init_from"), job.get("phase_from"), data.get("store"), data.get("vocabulary")]
    return None if any(known) else math.log(data["vocab_size"])


def _as_published(plan: Mapping[str, Any], recipe: str) -> bool:
    """Return whether a plan follows a recipe, without changes that alter the curve."""
    return plan["spec"]["recipe"] == recipe and not any(key in plan["changes"] for key in SHAPING)


def _around(curve: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float, float], ...]:
    """Return a falling curve as a band: the lowest and the highest expected loss at each step."""
    last = curve[-1][0]
    steps = {
        step for at, _ in curve for step in (at, round(at * STEP_TOLERANCE), round(at / STEP_TOLERANCE)) if step <= last
    }
    return tuple(
        (
            step,
            (1 - LOSS_TOLERANCE) * _at(curve, step * STEP_TOLERANCE),
            (1 + LOSS_TOLERANCE) * _at(curve, step / STEP_TOLERANCE),
        )
        for step in sorted(steps)
    )


def _at(curve: tuple[tuple[int, float], ...], step: float) -> float:
    """Return the value of a curve at a step, interpolated; beyond the last point, its value."""
    for (before, high), (after, low) in pairwise(curve):
        if step <= after:
            return high + (low - high) * (step - before) / (after - before)
    return curve[-1][1]
