"""Draw the rooms of both packages from their imports: `python docs/site/architecture.py` writes docs/architecture.svg.

A room is a folder or a module directly below a package. Its layer is above the highest room that it imports
(imports inside functions and for type checking count). Arrows that a longer path implies are omitted.
"""

from __future__ import annotations

import ast
import html
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGES = ("orchestrator", "train_jobs")
LEFT_OUT = {"__init__", "__main__"}
BOX_WIDTH, BOX_HEIGHT, GAP, FLOOR, MARGIN = 112, 38, 14, 84, 24
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2430 } .size { font-size: 10px; fill: #5b6372 }
.package { font-size: 16px; font-weight: 600 } rect { fill: #eef3fb; stroke: #5b7db1; rx: 5 }
.train_jobs rect { fill: #eef7f0; stroke: #5b9a6e } path { fill: none; stroke: #8a93a3; stroke-width: 1 }
.shared path { stroke: #c0762b; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ef } .size { fill: #a9b1c0 } rect { fill: #22304a; stroke: #7d9fd3 }
  .train_jobs rect { fill: #1f3a2a; stroke: #7dba90 } path { stroke: #78808f }
}
"""


def imports() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Return room -> the rooms it imports, each as (package, name)."""
    found: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
            if room is None:
                continue
            found[room] |= set()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                found[room] |= {other for name in names if (other := room_of(name)) not in {None, room}}  # type: ignore[misc]
    return dict(found)


def room_of(module: str) -> tuple[str, str] | None:
    """Return the room of a module; None for one of another package, or for a package itself."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    inside = (ROOT / package / name).is_dir() or (ROOT / package / f"{name}.py").is_file()
    return (package, name) if package in PACKAGES and name and name not in LEFT_OUT and inside else None


def floors(rooms: dict[str, set[str]]) -> dict[str, int]:
    """Return room -> its floor: 0 for one that imports no other, else one above the highest that it imports.

    Raises:
        ValueError: the rooms import each other in a circle.
    """
    found: dict[str, int] = {}
    while len(found) < len(rooms):
        ready = [name for name in rooms if name not in found and rooms[name] <= found.keys()]
        if not ready:
            raise ValueError(f"a circle among {sorted(rooms.keys() - found.keys())}")
        found |= {name: 1 + max((found[other] for other in rooms[name]), default=-1) for name in ready}
    return found


def reduced(rooms: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that no longer way implies (the transitive reduction)."""

    def below(name: str) -> set[str]:
        return rooms[name].union(*map(below, rooms[name]))

    return {name: others - set().union(*map(below, others)) for name, others in rooms.items()}


def size_of(package: str, room: str) -> str:
    """Return the number of files and lines of a room."""
    folder = ROOT / package / room
    paths = list(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in paths)
    return f"{len(paths)} file{'s' if len(paths) != 1 else ''}, {lines:,} lines"


def draw() -> str:
    """Return the picture as SVG."""
    everything = imports()
    parts: list[str] = []
    places: dict[tuple[str, str], tuple[float, float]] = {}
    left, height = float(MARGIN), 0.0
    for package in PACKAGES:
        rooms = {name: {other for home, other in others if home == package}
                 for (home, name), others in everything.items() if home == package}  # fmt: skip
        levels = floors(rooms)
        top = max(levels.values())
        widest = max(list(levels.values()).count(level) for level in range(top + 1))
        width = widest * (BOX_WIDTH + GAP) - GAP
        group = [f'<text class="package" x="{left}" y="{MARGIN + 4}">{package}/</text>']
        for level in range(top + 1):
            names = sorted(name for name in rooms if levels[name] == level)
            start = left + (width - len(names) * (BOX_WIDTH + GAP) + GAP) / 2
            for number, name in enumerate(names):
                places[package, name] = (start + number * (BOX_WIDTH + GAP), MARGIN + 20 + (top - level) * FLOOR)
        for name, others in reduced(rooms).items():
            group += [arrow(places[package, name], places[package, other]) for other in sorted(others)]
        for name in rooms:
            x, y = places[package, name]
            group.append(
                f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>'
                f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 16:.0f}" text-anchor="middle">{html.escape(name)}</text>'
                f'<text class="size" x="{x + BOX_WIDTH / 2:.0f}" y="{y + 30:.0f}" text-anchor="middle">'
                f"{size_of(package, name)}</text>"
            )
        parts.append(f'<g class="{package}">{"".join(group)}</g>')
        left += width + 3 * MARGIN
        height = max(height, MARGIN + 20 + top * FLOOR + BOX_HEIGHT + MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left - 2 * MARGIN:.0f} {height:.0f}" role="img">'
        f"<title>Rooms of both packages; an arrow is an import, and it only goes down</title><style>{STYLE}</style>"
        f"{''.join(parts)}</svg>\n"
    )


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return a curve from the foot of one box to the head of another."""
    x1, y1, x2, y2 = start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT, end[0] + BOX_WIDTH / 2, end[1]
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
