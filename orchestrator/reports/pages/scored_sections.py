"""Sections of a page about the rows behind its scores, for the kinds of tasks that have any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.reports.pages.class_sections import class_sections
from orchestrator.reports.pages.span_sections import entity_sections, question_sections
from orchestrator.support.html import Markup

if TYPE_CHECKING:
    from train_jobs.evaluation.scored_rows import ScoredRows

SECTIONS = (class_sections, question_sections, entity_sections)
"""Functions of a set's name and rows, each of which yields nothing for rows of another kind."""


def scored_sections(content: bytes) -> Iterator[Markup]:
    """Yield the sections of each set of a scored_rows.json; none if it is missing or damaged."""
    from train_jobs.evaluation.scored_rows import read_scored_rows

    found: dict[str, ScoredRows] = {}
    with suppress(ValueError):
        found = read_scored_rows(content) if content else {}
    for name, rows in found.items():
        for sections in SECTIONS:
            yield from sections(name, rows)
