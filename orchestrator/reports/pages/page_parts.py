"""Elements that pages share: title with state, facts, key figures, tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from orchestrator.support.html import Markup, element, join

NONE_YET = "\u2014"  # an em dash
PLUS_MINUS = "\u00b1"
TIMES = " \u00d7 "
HELD_OUT = "validation_"


def link_to(target: Path, folder: Path) -> str:
    """Return the relative address of a page for links in a page of `folder`; both may be opened as files.

    Only the characters between the slashes are quoted, among them a colon, which would otherwise end a scheme.
    """
    return quote(Path(os.path.relpath(target, folder)).as_posix())


def linked(text: str, address: str | None) -> Markup:
    """Return a text as a link, or as it is without an address."""
    return join([text]) if address is None else element("a", text, href=address)


def titled(name: str, state: str) -> Markup:
    """Return the name as the page's heading, with a badge of the state."""
    return element("div", element("h1", name), badge(state), class_="title")


def badge(state: str) -> Markup:
    """Return a state in its colour."""
    return element("span", state, class_=f"badge {state}")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return labels with texts, side by side."""
    return element(
        "dl", *(element("div", element("dt", label), element("dd", text)) for label, text in pairs), class_="facts"
    )


def key_figures(figures: Iterable[Markup]) -> Markup:
    """Return the list of figures that `key_figure` returned."""
    return element("dl", *figures, class_="figures")


def key_figure(label: str, value: str, *lines: str) -> Markup:
    """Return a figure with its label, and with lines below it that put it into context."""
    more = (line if isinstance(line, Markup) else element("dd", line, class_="soft") for line in lines)
    return element("div", element("dt", label), element("dd", value, class_="value"), *more)


def table(header: Iterable[str], rows: Iterable[Sequence[str]], **attributes: str) -> Markup:
    """Return a table whose rows begin with their name.

    Args:
        header: texts or markup, one a column.
        rows: name and cells.
        attributes: of the table.
    """
    head = element("tr", *(element("th", text, scope="col") for text in header))
    body = (
        element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells))
        for name, *cells in rows
    )
    return element("table", element("thead", head), element("tbody", *body), **attributes)


def figures_panel(header: Iterable[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table of figures, aligned at the right."""
    return element("div", table(header, rows), class_="panel profile wide")


def wide_panel(name: str, header: Iterable[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table that scrolls sideways under its name for screen readers."""
    content = table(header, rows, class_="comparison")
    # Focusable, because a region that scrolls must be reachable with the keyboard.
    return element("div", content, class_="panel wide", tabindex="0", role="region", aria_label=name)
