"""MLflow's own page in Debian's Chromium, driven by Playwright.

    python -m tests.mlflow_page DIRECTORY      write the pictures of docs/mlflow.md

Needs `pip install playwright` and `apt-get install chromium`; Playwright's own browsers are not used.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mlflow_scene import BEST, MODEL, OTHER, Scene, build_scene
from tests.mlflow_servers import MlflowServer, running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu"]
SIZE = {"width": 1280, "height": 800}
MILLISECONDS = 180_000.0  # for a page on a busy machine: MLflow's page is several MB of script
COLOURS = 64
VIEW = 948  # pixels left of the panel of the assistant
WITHOUT_ASSISTANT = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
TRAINING = "workflowType=machine_learning"  # the views for model training, not those for agents


class MlflowPage:
    """A tab with MLflow's page.

    Args:
        tab: Playwright's page.
        scene: what the server has.
    """

    def __init__(self, tab: Any, scene: Scene) -> None:
        self.tab, self.scene = tab, scene
        self._runs = f"/experiments/{scene.experiment}/runs"

    def open(self, path: str, *texts: str) -> None:
        """Open a view and wait until it shows some texts."""
        link = "&" if "?" in path else "?"
        self.tab.goto("about:blank")  # the same address with another fragment would load nothing
        self.tab.goto(f"{self.scene.uri}/#{path}{link}{TRAINING}", wait_until="commit")
        for text in texts:
            self.wait(text)

    def wait(self, text: str) -> None:
        """Wait until a text is visible."""
        self.tab.get_by_text(text).filter(visible=True).first.wait_for()

    def text(self) -> str:
        """Return what the page shows."""
        return str(self.tab.inner_text("body"))

    def runs(self) -> None:
        """Open the table of runs."""
        self.open(self._runs, BEST, OTHER)

    def run(self, name: str) -> None:
        """Open a run."""
        self.open(f"{self._runs}/{self.scene.ids[name]}", name, "Parameters (")

    def dataset(self) -> None:
        """Open the panel of a dataset of the open run."""
        self.tab.get_by_text("train.jsonl").filter(visible=True).last.click()
        self.wait("num rows")

    def version(self) -> None:
        """Open the registered version."""
        self.open(f"/models/{MODEL}/versions/1", "Version 1", "champion")

    def compare(self, *names: str) -> None:
        """Open the comparison of runs."""
        runs = json.dumps([self.scene.ids[name] for name in names], separators=(",", ":"))
        self.open(f'/compare-runs?runs={runs}&experiments=["{self.scene.experiment}"]', names[0], "Parameters")

    def picture(self, to: Path, width: int = VIEW) -> None:
        """Write a picture of the visible part, in 64 colours, without the panel of the assistant."""
        from PIL import Image

        shot = Image.open(io.BytesIO(self.tab.screenshot(animations="disabled")))
        shot.crop((0, 0, width, shot.height)).convert("RGB").quantize(COLOURS).save(to, optimize=True)


@contextmanager
def mlflow_page(scene: Scene) -> Iterator[MlflowPage]:
    """Open a browser for as long as the context is open."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=MILLISECONDS)
        tab = browser.new_page(viewport=SIZE)
        tab.add_init_script(WITHOUT_ASSISTANT)
        tab.set_default_timeout(MILLISECONDS)
        try:
            yield MlflowPage(tab, scene)
        finally:
            browser.close()


def draw(page: MlflowPage, to: Path) -> None:
    """Write the pictures of docs/mlflow.md."""
    views = {
        "runs": page.runs,
        "run": lambda: page.run(BEST),
        "dataset": page.dataset,
        "version": page.version,
        "comparison": lambda: page.compare(*page.scene.trials),
    }
    for name, view in views.items():
        view()
        page.picture(to / f"mlflow-{name}.png", SIZE["width"] if name == "dataset" else VIEW)
        print(f"{name}: {(to / f'mlflow-{name}.png').stat().st_size} bytes", flush=True)


def main() -> None:
    """Build the scene on a server of its own, and write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        home, place = Path(folder, "home"), Path(folder, "server")
        home.mkdir(mode=0o700)
        place.mkdir()
        os.environ["ORCHESTRATOR_HOME"] = str(home)
        with running(MlflowServer(place)) as server, mlflow_page(build_scene(home, server.uri)) as page:
            draw(page, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
