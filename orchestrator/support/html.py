"""HTML for notebooks and pages: elements, and cards in the notebook's own colours."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from train_jobs.config.visible import visible_lines

STYLE = """
.orchestrator-card { margin: 4px 0; padding: 12px 16px; border: 1px solid rgba(128, 128, 128, .35); border-radius: 8px;
  max-width: 900px; font-size: 13px; line-height: 1.5; overflow-x: auto; }
.orchestrator-card b { font-size: 14px; }
.orchestrator-card i { margin-left: 10px; padding: 1px 10px; border: 1px solid currentColor; border-radius: 99px;
  font-style: normal; font-size: 12px; opacity: .8; }
.orchestrator-card table { margin: 8px 0 0; border-collapse: collapse; background: none; }
.orchestrator-card tr:nth-child(n) { background: none; }
.orchestrator-card th:nth-child(n), .orchestrator-card td:nth-child(n) { padding: 2px 18px 2px 0; border: 0;
  background: none; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.orchestrator-card th:nth-child(n) { font-weight: 400; opacity: .65; white-space: nowrap; }
.orchestrator-card td.number:nth-child(n) { text-align: right; font-variant-numeric: tabular-nums; }
"""  # :nth-child(n) selects every element, and is more specific than the table styles of notebooks


def card(title: str, rows: Iterable[tuple[str, str]], *, state: str | None = None, below: Iterable[Markup] = ()) -> str:
    """Return a card: a title, and a table with one fact a row.

    Args:
        title: a name.
        rows: label and fact; an empty label continues the row above.
        state: shown next to the title.
        below: elements after the table.
    """
    body = [element("tr", element("th", label), element("td", text)) for label, text in rows]
    return _framed(title, state, [*([element("table", *body)] if body else []), *below])


def settings_card(title: str, settings: Mapping[str, Any]) -> str:
    """Return a card of settings, one a row, with sections as YAML on one line.

    Args:
        title: a name.
        settings: JSON values; empty ones are left out.
    """
    return card(title, [(key, flow(value)) for key, value in settings.items() if value not in (None, {}, [])])


def flow(value: Any, *, inner: bool = False) -> str:
    """Return a value as one line of YAML; an `inner` mapping keeps its braces."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else json.dumps(value)
    text = ", ".join(f"{key}: {flow(part, inner=True)}" for key, part in value.items())
    return f"{{{text}}}" if inner else text


def grid(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, state: str | None = None) -> str:
    """Return a card: a title, and a table with a header. Numbers are aligned to the right.

    Args:
        title: a name.
        header: one label for each column.
        rows: cells of each row, as text.
        state: shown next to the title.
    """
    head = element("tr", *(element("th", label) for label in header))
    body = [element("tr", *(_cell(text) for text in row)) for row in rows]
    return _framed(title, state, [element("table", head, *body)])


def _framed(title: str, state: str | None, content: Iterable[Markup]) -> str:
    badge = [element("i", state)] if state else []
    return element(
        "div",
        element("style", Markup(STYLE)),
        element("div", element("b", title), *badge),
        *content,
        class_="orchestrator-card",
    )


def _cell(text: str) -> Markup:
    number = text[:1].isdigit() or (text[:1] in "+-" and text[1:2].isdigit())
    return element("td", text, class_="number") if number else element("td", text)


class Markup(str):
    """Text that is already HTML; every other string is escaped before it joins a document.

    Names of runs and messages of errors come from users: a string is safe only after `element` or `join` escaped it.
    """

    __slots__ = ()


def element(name: str, *content: str, **attributes: str | float) -> Markup:
    """Return an element: `element("p", "a < b", class_="note")` is `<p class="note">a &lt; b</p>`.

    Args:
        name: name of the tag.
        content: `Markup` is kept, any other text is escaped.
        attributes: a trailing underscore is dropped (`class_`), others become hyphens (`aria_label`). Values are
            escaped. Floats have one decimal: a tenth of a unit in a drawing is below the resolution of a screen.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Return the concatenated parts; those that are not `Markup` are escaped."""
    # directional marks would reorder a page as they do a terminal
    return Markup("".join(part if isinstance(part, Markup) else html.escape(visible_lines(part)) for part in parts))


def _value(value: str | float) -> str:
    return f"{value:.1f}" if isinstance(value, float) else visible_lines(str(value))
