"""Parser of the drawings of a page: the points of each figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from orchestrator.reports.pages import run_page
from orchestrator.reports.pages.run_report import report_of
from orchestrator.runs.differences import Side
from orchestrator.runs.status import RunStatus

# attributes that make a browser load a file
LOADS = {"src", "href", "srcset", "data", "poster", "xlink:href", "action"}


def render(
    status: RunStatus,
    reports: Iterable[dict[str, Any]],
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    *,
    seeds: Mapping[int, Iterable[dict[str, Any]]] | None = None,
) -> str:
    """Return the page of a run."""
    return run_page.render(report_of(Side(status, plan, result, None), reports, seeds))


def figures(page: str) -> dict[str, set[tuple[float, float]]]:
    """Return title -> distinct points of the lines and dots of each figure, without axes and hover areas."""
    found = {}
    for written in re.findall(r"<figure>.*?</figure>", page, re.DOTALL):
        tree = ElementTree.fromstring(written)
        if (drawing := tree.find("svg")) is None:
            continue
        places = {
            (float(x), float(y))
            for line in drawing.findall("polyline")
            for x, y in (pair.split(",") for pair in line.attrib["points"].split())
        }
        places |= {(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in drawing.findall("circle")}
        found[tree.findtext("figcaption/h2") or ""] = places
    return found


def overflowing_figures(page: str) -> list[str]:
    """Return the figures that draw beyond their own edges."""
    found = []
    for written in re.findall(r"<svg .*?</svg>", page, re.DOTALL):
        tree = ElementTree.fromstring(written)
        _, _, width, height = map(float, tree.attrib["viewBox"].split())
        points = [pair.split(",") for line in tree.iter() if (pairs := line.get("points")) for pair in pairs.split()]
        if any(not (0 <= float(x) <= width and 0 <= float(y) <= height) for x, y in points):
            found.append(tree.attrib["aria-label"])
    return found


def empty_figures(page: str) -> list[str]:
    """Return titles of figures with fewer than two distinct points."""
    return [title for title, places in figures(page).items() if len(places) < 2]


def references(page: str) -> list[str]:
    """Return all references that a browser would load or follow."""
    attributes = re.findall(r'\s([\w:-]+)="([^"]*)"', page)
    return [value for name, value in attributes if name in LOADS] + re.findall(r"url\(|@import|https?://[^\s<]+", page)
