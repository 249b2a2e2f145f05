"""Charts: marks have the positions that the axes show."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from orchestrator.reports.charts.charts import MAX_POINTS, Chart, Line, Reference, Series, figure

HOSTILE = '<script>alert("x")</script>'


def _series(values: list[float], every: int = 10) -> Series:
    return Series(tuple((every * (index + 1), value) for index, value in enumerate(values)))


def _tree(chart: Chart, last_step: int) -> ElementTree.Element:
    return ElementTree.fromstring(figure(chart, last_step=last_step))


def _points(tree: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    (polyline,) = tree.findall(f".//polyline[@class='{kind}']")
    return [tuple(map(float, pair.split(","))) for pair in polyline.attrib["points"].split()]  # type: ignore[misc]


def _axis(tree: ElementTree.Element, kind: str, coordinate: str) -> tuple[float, float]:
    """Return the scale and the offset of an axis, from its first and last drawn tick."""
    labels = [text for text in tree.findall(f".//svg/text[@class='{kind}']") if text.text != "step"]
    if coordinate == "x":
        where = [float(label.attrib["x"]) for label in labels]
    else:
        where = [float(line.attrib["y1"]) for line in tree.findall(".//line[@class='grid']")]
    shown = [float((label.text or "").replace(",", "").rstrip("%")) for label in labels]
    slope = (where[-1] - where[0]) / (shown[-1] - shown[0])
    return slope, where[0] - slope * shown[0]


def test_points_match_the_axes() -> None:
    values = [10 * math.exp(-index / 30) + 4 for index in range(100)]
    tree = _tree(Chart("MLM loss", (Line("training", "training", _series(values)),)), last_step=1000)
    (by_step, step_zero), (by_value, value_zero) = _axis(tree, "step", "x"), _axis(tree, "value", "y")

    drawn = _points(tree, "training")

    assert len(drawn) == 100
    for (x, y), value, step in zip(drawn, values, range(10, 1001, 10), strict=True):
        assert x == pytest.approx(step * by_step + step_zero, abs=0.2)
        assert y == pytest.approx(value * by_value + value_zero, abs=0.2)


def test_reference_line_is_inside_the_drawing() -> None:
    chart = Chart(
        "MLM loss",
        (Line("training", "training", _series([9.0, 8.5, 8.0])),),
        references=(Reference("unigram entropy", 6.4173),),
    )
    tree = _tree(chart, last_step=30)
    by_value, value_zero = _axis(tree, "value", "y")

    (line,) = tree.findall(".//line[@class='reference']")

    assert float(line.attrib["y1"]) == float(line.attrib["y2"])
    assert float(line.attrib["y1"]) == pytest.approx(6.4173 * by_value + value_zero, abs=0.2)
    bottom = next(float(axis.attrib["y1"]) for axis in tree.findall(".//line[@class='axis']"))
    assert max(y for _, y in _points(tree, "training")) < float(line.attrib["y1"]) < bottom
    assert "unigram entropy 6.417" in "".join(tree.itertext())


def test_long_series_is_thinned_but_keeps_its_spike() -> None:
    values = [5.0] * 20_000
    values[12_345] = 50.0
    tree = _tree(Chart("MLM loss", (Line("training", "training", _series(values, every=1)),)), last_step=20_000)
    by_value, value_zero = _axis(tree, "value", "y")

    drawn = _points(tree, "training")

    assert 300 < len(drawn) <= MAX_POINTS
    assert min(y for _, y in drawn) == pytest.approx(50.0 * by_value + value_zero, abs=0.2)
    assert len(tree.findall(".//g[@class='hover']")) <= 121


def test_hover_shows_exact_values_of_a_step() -> None:
    training = _series([9.0 - index / 1000 for index in range(1000)])
    validation = Series(((2500, 8.888), (5000, 8.666)))
    chart = Chart("MLM loss", (Line("training", "training", training), Line("validation", "validation", validation)))
    tree = _tree(chart, last_step=10_000)

    titles = [title.text or "" for title in tree.findall(".//g[@class='hover']/title")]
    strips = [strip.attrib for strip in tree.findall(".//g[@class='hover']/rect")]

    assert "step 2,500\ntraining 8.751\nvalidation 8.888" in titles
    assert "step 5,000\ntraining 8.501\nvalidation 8.666" in titles
    for before, after in pairwise(strips):
        assert float(before["x"]) + float(before["width"]) == pytest.approx(float(after["x"]), abs=0.11)


def test_shares_are_percentages_on_an_axis_from_zero() -> None:
    line = Line("validation", "validation", _series([0.31, 0.44]))
    tree = _tree(Chart("MLM accuracy", (line,), from_zero=True, shares=True), last_step=20)
    labels = [text.text for text in tree.findall(".//text[@class='value']")]
    assert labels == ["0%", "10%", "20%", "30%", "40%"]
    assert "validation 44.0%" in "".join(tree.itertext())


@pytest.mark.parametrize("value", [0.0, 5.0, -2.0, 1e-7, 3e8])
def test_single_point_is_a_dot_inside_the_drawing(value: float) -> None:
    tree = _tree(Chart("MLM loss", (Line("training", "training", _series([value])),)), last_step=10)
    _, top, width, height = (float(number) for number in tree.find("svg").attrib["viewBox"].split())  # type: ignore[union-attr]
    (dot,) = tree.findall("./svg/circle")
    assert top < float(dot.attrib["cy"]) < height
    assert 0 < float(dot.attrib["cx"]) < width


def test_range_of_rounding_errors_is_drawn_as_constant() -> None:
    series = _series([5.0, math.nextafter(5.0, 6.0)])
    tree = _tree(Chart("Loss", (Line("training", "training", series),)), last_step=20)
    (_, first), (_, second) = _points(tree, "training")
    assert first == second
    labels = [text.text for text in tree.findall(".//text[@class='value']")]
    assert labels == ["0", "2", "4", "6", "8", "10"]


def test_non_finite_values_are_counted_but_not_drawn() -> None:
    some = figure(Chart("Loss", (Line("training", "training", Series(((10, 5.0),), left_out=3)),)), last_step=10)
    none = figure(Chart("Loss", (Line("training", "training", Series(left_out=1)),)), last_step=0)

    assert "Left out: 3 values not finite." in some
    assert "Nothing to draw: 1 value not finite." in none
    assert "<svg" not in none


def test_chart_has_a_text_description() -> None:
    chart = Chart(
        "MLM loss", (Line("training", "training", _series([9.0, 8.0])),), references=(Reference("entropy", 6.0),)
    )
    svg = _tree(chart, last_step=20).find("svg")
    assert svg is not None
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"] == (
        "MLM loss over steps: training from 9.000 at step 10 to 8.000 at step 20; entropy 6.000"
    )


def test_titles_and_labels_are_escaped() -> None:
    chart = Chart(
        HOSTILE,
        (Line(HOSTILE, "training", _series([1.0, 2.0])),),
        references=(Reference('" onload="alert(1)', 1.5),),
    )
    written = figure(chart, last_step=20)
    assert "<script" not in written
    tree = ElementTree.fromstring(written)
    assert tree.findtext("figcaption/h2") == HOSTILE
    assert not [name for part in tree.iter() for name in part.attrib if name.startswith("on")]
