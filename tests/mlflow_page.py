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
from urllib.parse import quote

from tests.mlflow_scene import BEST, MODEL, OTHER, SWEEP, Scene, build_scene
from tests.mlflow_servers import MlflowServer, running

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu"]
SIZE = {"width": 1280, "height": 800}
MILLISECONDS = 180_000.0  # for a page on a busy machine: MLflow's page is several MB of script
COLOURS = 128
# each view as in a new browser, without the panel of the assistant: the page remembers grouping and filters
FRESH = "localStorage.clear(); localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
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

    def contour(self, x: str, y: str, z: str) -> None:
        """Draw the contour plot of the open comparison over two parameters, coloured by a metric."""
        self.tab.get_by_text("Contour Plot").click()
        for axis, name in (("x", x), ("y", y), ("z", z)):
            self.tab.locator(f"#{axis}axis-selector").click()
            self.tab.get_by_role("option", name=name, exact=True).click()
        self.tab.locator(".contourlayer path").first.wait_for(state="attached")

    def group(self, by: str, group: str) -> None:
        """Group the runs of the open table by a tag or parameter, and wait for a group."""
        self.tab.get_by_role("button", name="Group by").click()
        self.tab.get_by_role("menuitemcheckbox", name=by, exact=True).click()
        self.wait(f"Group: {group}")

    def sweep_curves(self, by: str, group: str, metric: str) -> None:
        """Open the curves of the sweep's trials: each group is the mean of its trials, with their range.

        Args:
            by: tag or parameter.
            group: one of its values.
            metric: part of the names of the metrics.
        """
        sweep = quote(f'tags."orchestrator.sweep" = "{SWEEP}"')
        self.open(f"{self._runs}?compareRunsMode=CHART&searchFilter={sweep}", SWEEP)
        self.group(by, group)
        self.tab.get_by_placeholder("Search metric charts").fill(metric)
        self.wait(f"{group} ({metric}")

    def picture(self, to: Path) -> None:
        """Write a picture of the visible part, in few colours."""
        from PIL import Image

        self.tab.mouse.move(0, 0)  # a chart below the mouse has a toolbar
        shot = Image.open(io.BytesIO(self.tab.screenshot(animations="disabled")))
        shot.convert("RGB").quantize(COLOURS).save(to, optimize=True)


@contextmanager
def mlflow_page(scene: Scene) -> Iterator[MlflowPage]:
    """Open a browser for as long as the context is open."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=MILLISECONDS)
        tab = browser.new_page(viewport=SIZE)
        tab.add_init_script(FRESH)
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
        "contour": lambda: page.contour("optimizer.learning_rate", "train.epochs", "validation_score"),
        "groups": lambda: page.sweep_curves("optimizer.learning_rate", "0.001", "validation"),
    }
    for name, view in views.items():
        view()
        page.picture(to / f"mlflow-{name}.png")
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
