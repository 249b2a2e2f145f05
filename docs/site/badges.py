"""Draw the badges of the README, docs/badges/*.svg, from pyproject.toml and the versions that the lock covers.

python docs/site/badges.py
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "badges"
LETTER, PAD, HEIGHT = 6.6, 6, 20  # pixels, for 11 pixels of a sans-serif font
sys.path.insert(0, str(ROOT))

from supply_chain.lock import PYTHONS  # noqa: E402  # found by the line above


def badges() -> dict[str, str]:
    """Return file name and SVG of each badge."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest, highest = (".".join(map(str, python)) for python in (PYTHONS[0], PYTHONS[-1]))
    facts = {
        "version": ("version", project["version"]),
        "python": ("Python", f"{lowest} to {highest}"),
        "platform": ("platform", "Linux x86_64"),
        "license": ("license", project["license"]),
    }
    return {f"{name}.svg": _badge(*words) for name, words in facts.items()}


def _badge(label: str, value: str) -> str:
    left, right = (round(LETTER * len(words) + 2 * PAD) for words in (label, value))
    width = left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" role="img">'
        f"<title>{label}: {value}</title>"
        f'<rect width="{width}" height="{HEIGHT}" rx="3" fill="#0b6e66"/>'
        f'<path d="M3 0h{left - 3}v{HEIGHT}H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#4b5263"/>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2:g}" y="14">{label}</text><text x="{left + right / 2:g}" y="14">{value}</text></g></svg>\n'
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in badges().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
