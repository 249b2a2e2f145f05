"""Pages in headless Chromium, if installed: nothing overflows on a phone, and lines are drawn."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.reports.pages.comparison import render_comparison, write_report
from orchestrator.reports.pages.sweep_page import render_sweep
from tests.unit.orchestrator.test_scores import SEVERAL
from tests.unit.reports.drawings import render
from tests.unit.reports.test_report_comparison import subject
from tests.unit.reports.test_report_run import RESULT, reports_of, status_of
from tests.unit.sweeps.test_sweep_report import ROWS, status

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--hide-scrollbars",
    "--no-sandbox",
    "--disable-gpu",
    "--allow-file-access-from-files",
    "--virtual-time-budget=3000",
)
SCHEMES = {"light": "1", "dark": "0"}
PHONE, LAPTOP = 375, 1280
LONG = "a-run-whose-name-is-as-long-as-any-name-can-be-0123abcd"
# Measures in each frame the width of the page, and size and colour of the marks of its figures.
ASK = """
onload = () => {
  const told = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, shown = frame.contentWindow;
    const marks = [...page.querySelectorAll("svg")].map(svg => {
      const drawn = [...svg.querySelectorAll(":scope > polyline, :scope > circle")].map(mark => {
        const box = mark.getBoundingClientRect(), style = shown.getComputedStyle(mark);
        return [box.width, box.height, style.stroke, style.fill];
      });
      return drawn;
    });
    const broken = [...page.querySelectorAll(".trials td, .trials th, .bars th, .bars td, td table th code")].flatMap(
      cell => {
        const found = [], walker = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const node = walker.currentNode;
          for (const word of node.data.matchAll(/\\S+/g)) {
            const range = page.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(word[0]);
          }
        }
        return found;
      });
    return {broken, width: page.documentElement.scrollWidth, ink: shown.getComputedStyle(page.body).color, marks};
  });
  document.body.innerHTML = "<pre></pre>";
  document.querySelector("pre").textContent = JSON.stringify(told);
};
"""

# Follows the first link of the page in the frame, and shows the title of the page that it opens.
FOLLOW = """
const frame = document.querySelector("iframe");
frame.onload = () => {
  frame.onload = () => {
    const title = frame.contentDocument.title;
    document.body.innerHTML = "<pre></pre>";
    document.querySelector("pre").textContent = JSON.stringify(title);
  };
  frame.contentDocument.querySelector("a").click();
};
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


def measure(pages: list[str], folder: Path, scheme: str) -> list[dict[str, Any]]:
    """Return the measurements of Chromium for each page, in a frame as wide as a phone, then as wide as a laptop."""
    frames = [
        f'<iframe width="{width}" height="800" style="border: 0" srcdoc="{html.escape(page)}"></iframe>'
        for width in (PHONE, LAPTOP)
        for page in pages
    ]
    found: list[dict[str, Any]] = shown_by(
        f"<meta charset='utf-8'>{''.join(frames)}<script>{ASK}</script>",
        folder,
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
    )
    return found


def shown_by(page: str, folder: Path, *flags: str) -> Any:
    """Return the JSON that the script of a page leaves in its element `pre`."""
    (folder / "frames.html").write_text(page)
    command = [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, f"file://{folder / 'frames.html'}"], capture_output=True, text=True, timeout=120)
    return json.loads(html.unescape(re.findall(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)[0]))


@pytest.fixture
def pages(plan: dict[str, Any]) -> list[str]:
    """Return a page of each kind, with long names."""
    run = render(status_of(name=LONG, handle=f"local://{LONG}", reason="why " * 60), reports_of(), plan, RESULT)
    runs = [subject(plan, f"{LONG}-{seed}", train__seed=seed) for seed in (1, 2)]
    tuned = {**plan, "job": {**plan["job"], "task": "RTE"}}
    compared = render_comparison([*runs, subject(plan, LONG, train__log_every=3)])
    both = render_comparison([subject(tuned, name, kind="finetune", result=SEVERAL) for name in (LONG, "b")])
    return [run, compared, both, render_sweep(status(*ROWS, name=LONG), {"train.seed": 0.5})]


@pytest.mark.slow
def test_pages_fit_phone_and_draw_both_schemes(pages: list[str], tmp_path: Path) -> None:
    ink = {}
    for scheme in SCHEMES:
        folder = tmp_path / scheme
        folder.mkdir()
        found = measure(pages, folder, scheme)
        assert [page["width"] for page in found] == [PHONE] * len(pages) + [LAPTOP] * len(pages)
        assert [word for page in found for word in page["broken"]] == [], (
            "words of tables that are broken in the middle"
        )
        drawings = [drawing for page in found for drawing in page["marks"]]
        assert len(drawings) > 40
        for drawing in drawings:
            assert any(max(width, height) > 2 for width, height, *_ in drawing)
            assert all({stroke, fill} != {"none"} for *_, stroke, fill in drawing)
        (ink[scheme],) = {page["ink"] for page in found}
    assert ink["light"] != ink["dark"]


@pytest.mark.slow
def test_links_of_a_comparison_open_pages_of_its_runs(plan: dict[str, Any], tmp_path: Path) -> None:
    """Opened as files, from a folder whose name needs quoting; a run without a folder has its page next to it."""
    runs = [subject(plan, name) for name in ("one", "a 100% #2?")]
    runs[0] = replace(runs[0], status=runs[0].status.model_copy(update={"folder": None}))
    runs[1] = replace(runs[1], status=runs[1].status.model_copy(update={"folder": str(tmp_path / "its %20 folder")}))
    (tmp_path / "its %20 folder").mkdir()
    for first in (runs, runs[::-1]):
        page = write_report(first, tmp_path / "both.html")
        frame = f'<iframe src="{page.name}"></iframe><script>{FOLLOW}</script>'
        assert shown_by(frame, tmp_path) == f"{first[0].name} (completed)"
