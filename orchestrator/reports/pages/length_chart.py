"""The lengths of the sentences and documents of a token store, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.reports.charts.axes import Axis
from orchestrator.reports.charts.drawing import Drawing, write_png
from orchestrator.support.html import element

KIBI = 1024


def draw_lengths(lengths: dict[str, dict[str, Any]], path: Path) -> None:
    """Write a PNG: a row for each split, a column for sentences and one for documents.

    Args:
        lengths: as `python -m train_jobs.tools.stores show` gives them.
        path: the file.

    Raises:
        StorageError: the file cannot be written.
    """
    drawn = [_histogram(f"{split}: {name}", found) for split, by in lengths.items() for name, found in by.items()]
    write_png(path, drawn, columns=max(map(len, lengths.values())), fix="--png FILE")


def _histogram(title: str, lengths: dict[str, Any]) -> Drawing:
    """Draw a bar between each two edges; the label of an edge stands at the left of its bar."""
    counts = lengths["counts"]
    names = tuple(f"{edge >> 10}k" if edge >= KIBI else str(edge) for edge in lengths["edges"])  # powers of two
    plain = Drawing(
        title=f"{title}, {lengths['mean']:.1f} on average",
        x_axis=Axis("length in tokens (k: 1,024)", 0.0, len(counts), names=names),
        y_axis=Axis("count", 0.0, 1.05 * max([1, *counts]), whole=True),
    )
    bottom, width = plain.y(0.0), plain.x(0.9) - plain.x(0.0)
    bars = (
        element("rect", class_="bar", x=plain.x(place + 0.05), y=top, width=width, height=bottom - top)
        for place, top in enumerate(map(plain.y, counts))
    )
    return plain.with_layers(*bars)
