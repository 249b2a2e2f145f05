"""Draw figures: a `Drawing` becomes the `<figure>` of a page, a standalone SVG, or a PNG.

benchmarks/chart_engine.py compares this with Vega-Lite and matplotlib; docs/reports.md has the result. Colours are CSS
classes. A page's style sheet defines them for light and dark mode; a standalone SVG contains the light colours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.reports.charts.axes import Axis
from orchestrator.reports.charts.style import DRAWING_STYLE, LIGHT
from orchestrator.support.errors import StorageError
from orchestrator.support.html import Markup, element

WIDTH, HEIGHT = 560.0, 270.0  # of the drawing, in its own units; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 62.0, 26.0, 12.0, 48.0  # margins that fit labels of 17 units, their size on a phone
ZOOM = 2.2  # pixels of a PNG for each unit: 1,232 wide, enough for a printed column
TITLE, ROW, PADDING = 26.0, 19.0, 10.0  # heights in a standalone SVG: title, row of the legend, edge
CHARACTER, SYMBOL, GAP = 7.6, 26.0, 14.0  # widths in a legend: a character of 12.5 units, its symbol, between entries
FONT = files("orchestrator.reports") / "fonts" / "DejaVuSans.ttf"  # a container may have no fonts at all
COVERED = 0x460  # first character that the font lacks: it is a subset with Latin, Greek and Cyrillic


class LegendEntry(NamedTuple):
    """An entry of a legend: class of the symbol, label and value."""

    kind: str
    label: str
    value: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure between two axes.

    Attributes:
        title: its title, including the unit.
        x_axis: horizontal axis, from left to right.
        y_axis: vertical axis, from bottom to top.
        words: description for screen readers.
        legend: entries of the legend.
        behind: elements under the grid.
        layers: elements over the axes, the last on top.
        hovers: elements that react to the pointer, on pages only.
        notes: sentences below the drawing.
    """

    title: str
    x_axis: Axis
    y_axis: Axis
    words: str = ""
    legend: tuple[LegendEntry, ...] = ()
    behind: tuple[Markup, ...] = ()
    layers: tuple[Markup, ...] = ()
    hovers: tuple[Markup, ...] = ()
    notes: tuple[str, ...] = ()

    def x(self, value: float) -> float:
        """Return units from the left."""
        return LEFT + self.x_axis.share(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return units from the top."""
        return HEIGHT - BOTTOM - self.y_axis.share(value) * (HEIGHT - TOP - BOTTOM)

    def with_layers(self, *layers: Markup) -> Drawing:
        """Return the drawing with more layers on top."""
        return replace(self, layers=(*self.layers, *layers))

    def line(self, points: Iterable[tuple[float, float]], kind: str, title: str = "") -> Markup:
        """Return a line through points in units of the data, with a text for the pointer."""
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return element("polyline", *_titled(title), class_=kind, points=places)

    def dot(self, x: float, y: float, kind: str, title: str = "", *, radius: float = 4.0) -> Markup:
        """Return a dot at a point in units of the data, with a text for the pointer."""
        return element("circle", *_titled(title), class_=kind, cx=self.x(x), cy=self.y(y), r=radius)

    def rule(self, value: float, kind: str) -> Markup:
        """Return a horizontal line from side to side."""
        return element("line", class_=kind, x1=LEFT, y1=self.y(value), x2=WIDTH - RIGHT, y2=self.y(value))

    def html(self) -> Markup:
        """Return the `<figure>` of a page."""
        items = [
            element("li", element("i", class_=kind), f"{label} ", *([element("b", value)] if value else []))
            for kind, label, value in self.legend
        ]
        caption = [element("h2", self.title), *([element("ul", *items, class_="legend")] if items else [])]
        drawn = element(
            "svg",
            *self._content(),
            *self.hovers,
            viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
            role="img",
            aria_label=self.words,
        )
        notes = (element("p", note, class_="note") for note in self.notes)
        return element("figure", element("figcaption", *caption), drawn, *notes)

    def _content(self) -> Iterator[Markup]:
        yield from self.behind
        for tick, label in self.y_axis.ticks():
            yield self.rule(tick, "grid")
            yield element("text", label, class_="value", x=LEFT - 8, y=self.y(tick) + 4)
        bottom = HEIGHT - BOTTOM
        yield element("line", class_="axis", x1=LEFT, y1=bottom, x2=WIDTH - RIGHT, y2=bottom)
        for tick, label in self.x_axis.ticks():
            x = self.x(tick)
            yield element("line", class_="axis", x1=x, y1=bottom, x2=x, y2=bottom + 5)
            yield element("text", label, class_="step", x=x, y=bottom + 22)
        yield element("text", self.x_axis.label, class_="step", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5)
        yield from self.layers

    @property
    def size(self) -> float:
        """Height of the standalone drawing; its width is that of all."""
        return TITLE + ROW * len(self._rows()) + HEIGHT

    def standalone(self) -> Iterator[Markup]:
        """Return the content of a standalone SVG: title and legend as text, the drawing below."""
        yield element("text", self.title, class_="title", x=LEFT, y=18.0)
        for place, row in enumerate(self._rows()):
            for x, key in row:
                middle = TITLE + ROW * place + 8
                yield from _symbol(key.kind, x, middle)
                text = " ".join(filter(None, (key.label, key.value)))
                yield element("text", text, x=x + SYMBOL, y=middle + 4)
        below = f"translate(0 {self.size - HEIGHT:g})"
        yield element("g", *self._content(), transform=below)

    def _rows(self) -> list[list[tuple[float, LegendEntry]]]:
        """Return the entries of the legend, wrapped: the place of each from the left."""
        rows: list[list[tuple[float, LegendEntry]]] = []
        x = WIDTH
        for key in self.legend:
            width = SYMBOL + CHARACTER * len(f"{key.label} {key.value}") + GAP
            if x + width > WIDTH - RIGHT + GAP:
                rows.append([])
                x = LEFT
            rows[-1].append((x, key))
            x += width
        return rows


def svg_of(drawings: Sequence[Drawing], columns: int = 1) -> str:
    """Return a standalone SVG in light colours.

    Args:
        drawings: at least one.
        columns: drawings in a row.
    """
    across, down = WIDTH + PADDING, max(drawing.size for drawing in drawings) + PADDING
    places = [(place % columns * across, place // columns * down + PADDING / 2) for place in range(len(drawings))]
    placed = [
        element("g", *drawing.standalone(), transform=f"translate({x:g} {y:g})")
        for drawing, (x, y) in zip(drawings, places, strict=True)
    ]
    width, height = columns * across, -(-len(drawings) // columns) * down
    style = re.sub(r"var\(--([\w-]+)\)", lambda found: LIGHT[found[1]], DRAWING_STYLE)
    return element(
        "svg",
        element("style", Markup(style)),
        element("rect", width=width, height=height, fill=LIGHT["card"]),
        *placed,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
    )


def png_of(svg: str) -> bytes:
    """Return a standalone SVG as a PNG. The font is part of the package, so every machine draws the same pixels."""
    import resvg_py

    with as_file(FONT) as font:
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=svg,
                zoom=ZOOM,
                font_files=[str(font)],
                font_family="DejaVu Sans",
                sans_serif_family="DejaVu Sans",
                skip_system_fonts=max(map(ord, svg)) < COVERED,  # scanning them takes longer than drawing
            )
        )


def write_png(path: Path, drawings: Sequence[Drawing], *, columns: int = 1, fix: str = "--png FOLDER") -> Path:
    """Write a PNG; return its path.

    Args:
        path: the file; its folder is created if it is missing.
        drawings: see `svg_of`.
        columns: see `svg_of`.
        fix: fix of the error if the file cannot be written.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_of(svg_of(drawings, columns)))
    except OSError as problem:
        raise StorageError(f"cannot write {path}: {problem.strerror}", fix=fix) from problem
    return path


def _titled(title: str) -> list[Markup]:
    return [element("title", title)] if title else []


def _symbol(kind: str, x: float, y: float) -> Iterator[Markup]:
    """Yield the symbol of an entry of the legend: a line, a dot or an area."""
    first, *more = kind.split()
    if first == "corridor":
        yield element("polygon", class_=first, points=f"{x},{y - 6} {x + 18},{y - 6} {x + 18},{y + 6} {x},{y + 6}")
    elif first == "reference":
        yield element("line", class_=first, x1=x, y1=y, x2=x + 18, y2=y)
    elif "dot" in more:
        yield element("circle", class_=first, cx=x + 9, cy=y, r=4.5)
    else:
        yield element("polyline", class_=first, points=f"{x},{y} {x + 18},{y}")


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
    """Draw a bar between each two edges; the label of an edge is at the left of its bar."""
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
