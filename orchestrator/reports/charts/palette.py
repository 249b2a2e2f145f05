"""Colours of reports, each by what it is for: pages have both, pictures the light ones."""

from __future__ import annotations

_COLOURS = {  # on a light page, on a dark one
    "page": ("#f6f7f9", "#101418"),
    "card": ("#fff", "#181d23"),
    "ink": ("#1b1f24", "#e7eaee"),
    "soft": ("#59636e", "#9aa5b1"),
    "line": ("#dfe3e8", "#2c343d"),
    "code": ("#eef0f3", "#222932"),
    "training": ("#3a78d0", "#6ea5f0"),
    "validation": ("#c2410c", "#f59e56"),
    "reference": ("#6b7280", "#9aa5b1"),
    "corridor": ("#e6ecf5", "#22303f"),
    "run-1": ("#3a78d0", "#6ea5f0"),
    "run-2": ("#c2410c", "#f59e56"),
    "run-3": ("#17803d", "#5cc98a"),
    "run-4": ("#7c3aed", "#b79cff"),
    "run-5": ("#a16207", "#e0b84c"),
    "run-6": ("#0e7490", "#4cc3d9"),
    "run-7": ("#be185d", "#f48fb8"),
    "run-8": ("#57534e", "#b5aea8"),
    "good": ("#17733a", "#56c27a"),
    "bad": ("#b42318", "#ff8a7a"),
    "busy": ("#1d5fbf", "#7fb0f5"),
    "calm": ("#59636e", "#9aa5b1"),
}
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}

KINDS = tuple(name for name in _COLOURS if name.startswith("run-"))  # colours of several runs, which are classes too


def variables(colours: dict[str, str]) -> str:
    """As a style sheet's `--page: #f6f7f9; --card: ...`."""
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())
