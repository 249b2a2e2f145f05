"""How long the sentences and documents of a token store are, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.reports.charts.pictures import new_figure, save

INCHES = (10.0, 6.0)


def draw_lengths(lengths: dict[str, dict[str, Any]], path: Path) -> None:
    """Writes a PNG: a row for each split, a column for sentences and one for documents.

    Args:
        lengths: as `python -m train_jobs.tools.stores show` gives them.
        path: the file.

    Raises:
        SpecError: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    figure = new_figure(INCHES)
    columns = max(len(of_split) for of_split in lengths.values())
    axes = figure.subplots(len(lengths), columns, squeeze=False)
    for row, (split, of_split) in zip(axes, lengths.items(), strict=True):
        for place, (name, found) in zip(row, of_split.items(), strict=True):
            place.bar(range(len(found["counts"])), found["counts"], width=0.9)
            ticks = [tick - 0.5 for tick in range(len(found["edges"]))]
            place.set_xticks(ticks, [str(edge) for edge in found["edges"]], rotation=90)
            place.set_title(f"{split}: {name}, {found['mean']:.1f} on average")
    save(figure, path, fix="--png FILE")
