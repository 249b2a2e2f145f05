"""The report of an evaluation: its scores, the scores of each class, and the mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.reports.charts.axes import number
from orchestrator.reports.pages.class_sections import class_tables
from orchestrator.reports.pages.page_parts import NONE_YET, key_figure, key_figures
from orchestrator.reports.pages.run_report import RunReport
from orchestrator.reports.pages.scored_sections import scored_sections
from orchestrator.reports.pages.tuning_report import score_table
from orchestrator.support.html import Markup, element


class EvaluationReport(RunReport):
    """The report of an evaluation."""

    def results(self) -> Iterator[Markup]:
        """Yield the scores, the tables of classes and the sections about their rows."""
        status = self.status
        rows = f"{status.step:,}" if status.step is not None else NONE_YET
        done = key_figure("Rows done", rows, f"of {status.steps:,}" if status.steps is not None else "")
        if status.results is None:
            yield key_figures([done])
            return
        (scores,) = status.results.scores
        # the score repeats a single metric
        shown = {name: found for name, found in scores.metrics.items() if name != "score" or len(scores.metrics) > 2}
        yield key_figures([*(key_figure(name, number(found.mean)) for name, found in shown.items()), done])
        alone = scores.model_copy(update={"metrics": shown})
        yield score_table(status.results.model_copy(update={"scores": [alone]}))
        yield from class_tables(self.result.get("sets", {}))
        yield from scored_sections(self.scored.get("", b""))

    def plan_rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the model."""
        yield "Model", [element("code", str(self.plan["job"]["model"]))]
