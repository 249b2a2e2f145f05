"""What a notebook shows of a plan or a sweep: a card in the notebook's own colours, whichever they are."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
"""  # :nth-child(n) chooses every one, and counts for more than what notebooks say of tables


def card(title: str, rows: Iterable[tuple[str, str]], *, state: str | None = None, below: Iterable[Markup] = ()) -> str:
    """A title, and below it a fact a row.

    Args:
        title: a name.
        rows: label and fact; a label that is empty goes on with the one before.
        state: shown beside the title.
        below: what follows.
    """
    body = [element("tr", element("th", label), element("td", text)) for label, text in rows]
    return _framed(title, state, [*([element("table", *body)] if body else []), *below])


def settings_card(title: str, settings: Mapping[str, Any]) -> str:
    """A title, and below it each setting in a row of its own, sections in one line as YAML has them.

    Args:
        title: a name.
        settings: as JSON has them; what is empty is left out.
    """
    return card(title, [(key, flow(value)) for key, value in settings.items() if value not in (None, {}, [])])


def flow(value: Any, *, inner: bool = False) -> str:
    """A value in one line, as a YAML file may have it; of a mapping inside another with its braces."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else json.dumps(value)
    text = ", ".join(f"{key}: {flow(part, inner=True)}" for key, part in value.items())
    return f"{{{text}}}" if inner else text


def grid(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, state: str | None = None) -> str:
    """A title, and below it a table with a header; cells that begin with a digit or a sign stand at the right."""
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
    """Text that is HTML already; every other string is escaped on its way into a document."""

    __slots__ = ()


def element(name: str, *content: str, **attributes: str | float) -> Markup:
    """One element: `element("p", "a < b", class_="note")` is `<p class="note">a &lt; b</p>`.

    Args:
        name: of the tag.
        content: `Markup` is taken as it is, any other text escaped.
        attributes: a trailing underscore goes (`class_`), the others become hyphens (`aria_label`). Values are escaped,
            floats have one decimal: a tenth of a unit of a drawing is finer than a screen shows.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """The parts one after the other; those that are no `Markup` are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def _value(value: str | float) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
