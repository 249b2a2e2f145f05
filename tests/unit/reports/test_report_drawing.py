"""Standalone drawings: the figures of a page as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.reports.charts.charts import Chart, Corridor, Line, Reference, Series, draw, figure
from orchestrator.reports.charts.drawing import FONT, Drawing, draw_lengths, png_of, svg_of, write_png
from orchestrator.support.errors import StorageError

SVG = "{http://www.w3.org/2000/svg}"
CHART = Chart(
    "MLM loss",
    (
        Line("training", "training", Series(((10, 9.0), (20, 8.0), (30, 7.5)))),
        Line("run", "run-6", Series(((10, 9.5),)), joined=False),
    ),
    references=(Reference("unigram entropy", 6.4),),
    corridor=Corridor("no context learned yet", ((0, 6.4, 10.3), (30, 6.4, 10.3))),
)


@pytest.fixture
def drawing() -> Drawing:
    return draw(CHART, last_step=30)


def marks(tree: ElementTree.Element, namespace: str = "") -> list[tuple[str, str]]:
    """Return class and position of every line and area of the data."""
    found = [*tree.iter(f"{namespace}polyline"), *tree.iter(f"{namespace}polygon")]
    return [(mark.attrib["class"], mark.attrib["points"]) for mark in found]


def test_standalone_drawing_has_the_marks_of_the_page(drawing: Drawing) -> None:
    alone = marks(ElementTree.fromstring(svg_of([drawing])), SVG)
    on_page = marks(ElementTree.fromstring(figure(CHART, last_step=30)))
    assert on_page
    assert all(mark in alone for mark in on_page)


def test_standalone_drawing_has_title_legend_and_colours(drawing: Drawing) -> None:
    svg = svg_of([drawing])
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    for expected in (
        "MLM loss",
        "training 7.500",
        "run 9.500",
        "unigram entropy 6.400",
        "no context learned yet",
        "step",
    ):
        assert expected in texts
    assert "var(" not in svg, "converters do not support variables"
    assert "hover" not in svg


def test_drawings_are_joined_side_by_side(drawing: Drawing) -> None:
    one, four = (ElementTree.fromstring(svg_of([drawing] * count, columns)) for count, columns in ((1, 1), (4, 2)))
    for side in ("width", "height"):
        assert float(four.attrib[side]) == 2 * float(one.attrib[side])


def test_png_has_labels_with_any_installed_fonts(drawing: Drawing) -> None:
    assert len(FONT.read_bytes()) > 50_000
    svg = svg_of([drawing])
    assert png_of(svg) == png_of(svg)
    assert png_of(svg) != png_of(svg.replace("MLM loss", "NSP loss")), "the title is drawn"
    assert png_of(svg.replace("MLM loss", "\u635f\u5931"))[:4] == b"\x89PNG", "not one of our glyphs"


def test_lengths_are_one_picture_with_a_bar_per_bin(tmp_path: Path) -> None:
    found = {"edges": [1 << power for power in range(18)], "counts": [0, *range(16)], "mean": 12.5}
    path = tmp_path / "new" / "lengths.png"
    draw_lengths({"train": {"sentences": found, "documents": found}, "validation": {"sentences": found}}, path)
    assert path.stat().st_size > 5000
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        draw_lengths({"train": {"sentences": found}}, tmp_path / "file" / "lengths.png")


def test_drawing_without_data_has_only_axes(tmp_path: Path, drawing: Drawing) -> None:
    plain = Drawing("empty", drawing.x_axis, drawing.y_axis)
    assert write_png(tmp_path / "empty.png", [plain]).stat().st_size > 1000
