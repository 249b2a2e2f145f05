"""Picture of the top of an HTML report for README and docs, drawn by Chromium, in 64 colours.

python -m benchmarks.picture REPORT.html PICTURE.png [HEIGHT]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

WIDTH, HEIGHT, COLOURS = 1200, 900, 64
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def draw(page: Path, picture: Path, height: int = HEIGHT) -> None:
    """Write the picture."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as place:
        shot = Path(place) / "shot.png"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={place}", f"--window-size={WIDTH},{height}", f"--screenshot={shot}"),
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
        )
        Image.open(shot).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:4]))
