"""HTML and SVG by construction: text becomes markup in one place, which escapes it."""

from __future__ import annotations

import html
from collections.abc import Iterable


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
