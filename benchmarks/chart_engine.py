"""Which engine draws a report's figures: our own SVG, or Vega-Lite; and which library turns an SVG into a PNG.

    python -m benchmarks.chart_engine [REPEATS]

Expected before the first run:

- Vega-Lite parses, scales and strokes every point, so a curve of 100,000 points takes it more than the 50 ms that a
  live page may take for a redraw; thinned to 600 points it takes well below 50 ms.
- Our own SVG always thins: replacing a figure in the page takes less than 10 ms. Python spends more on thinning
  100,000 points than the browser on drawing the rest, and both together stay below 50 ms.
- Vega's script is about 0.8 MB: a page with it stays under 1.5 MB until the points themselves are inside it.
- resvg draws the PNG of our SVG at least five times as fast as matplotlib draws the same curve.

Redraws are measured in headless Chromium: from the call to the end of the frame that shows the change (a frame is
16.7 ms at best), and the part of it that script and layout take. Without a browser that table is left out.
"""

from __future__ import annotations

import io
import json
import math
import queue
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from typing import Any

import vl_convert
from matplotlib.figure import Figure

from benchmarks.machine import describe, spread
from orchestrator.reports.charts.charts import Chart, Line, Point, Series, decimate, draw, figure
from orchestrator.reports.charts.drawing import png_of, svg_of
from orchestrator.reports.charts.style import STYLE

POINTS = 100_000
FIGURES = 10  # of the page of a pretraining
REDRAWS = 15
SLOW_REDRAWS = 3  # of all points by Vega-Lite: seconds each
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = {  # imported name -> distribution
    "resvg_py": "resvg-py",
    "vl_convert": "vl-convert-python",
    "altair": "altair",
    "matplotlib.figure": "matplotlib",
}
TIMED = """
async function timed(redraw, repeats) {
  const script = [], frame = [];
  for (let turn = 0; turn < repeats + 2; turn++) {
    const started = performance.now();
    await redraw(turn);
    document.body.getBoundingClientRect();
    script.push(performance.now() - started);
    // A message posted inside a frame callback arrives after the frame was painted.
    await new Promise(done => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = done;
      channel.port2.postMessage(0);
    }));
    frame.push(performance.now() - started);
  }
  return {script: script.slice(2), frame: frame.slice(2)};
}
"""
REPORT = "fetch('/', {method: 'POST', body: JSON.stringify(found)})"


def curve(seed: int, count: int = POINTS) -> list[Point]:
    """Return a falling loss with noise, as (step, value)."""
    noise = random.Random(seed)
    return [(step, 4 + 6 * math.exp(-step / 20_000) + noise.gauss(0, 0.1)) for step in range(1, count + 1)]


def own_chart(points: list[Point]) -> Chart:
    """Return the chart of a curve, as in reports."""
    return Chart("MLM loss (nats per token)", (Line("training", "training", Series(tuple(points))),))


def own_figure(points: list[Point]) -> str:
    """Return the SVG figure of a page."""
    return figure(own_chart(points), last_step=points[-1][0])


def own_page(*, hovers: bool = True) -> str:
    """Return a page with two versions of a figure that replace each other, with or without the hover strips."""
    drawn = [own_figure(curve(seed)) for seed in (1, 2)]
    strips = re.compile('<g class="hover">.*?</g>', re.DOTALL)
    versions = json.dumps(drawn if hovers else [strips.sub("", one) for one in drawn])
    return (
        f"<!doctype html><meta charset='utf-8'><style>{STYLE}</style><div id='place'></div><script>{TIMED}"
        f"const versions = {versions}, place = document.getElementById('place');"
        f"timed(turn => {{ place.innerHTML = versions[turn % 2]; }}, {REDRAWS}).then(found => {REPORT});</script>"
    )


def vega_spec(points: list[Point]) -> dict[str, Any]:
    """Return the Vega-Lite specification of a curve."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": 560,
        "height": 270,
        "data": {"name": "curve", "values": [{"step": step, "value": round(value, 4)} for step, value in points]},
        "mark": "line",
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"field": "value", "type": "quantitative", "scale": {"zero": False}},
        },
    }


def vega_page(renderer: str, thin: Callable[[list[Point]], list[Point]]) -> str:
    """Return a page that redraws the curve with Vega-Lite."""
    redraws = SLOW_REDRAWS if thin is list else REDRAWS
    specs = [vega_spec(thin(curve(seed))) for seed in (1, 2)]
    values = json.dumps([spec["data"]["values"] for spec in specs])
    return (
        f"<!doctype html><meta charset='utf-8'><div id='place'></div><script>{vl_convert.javascript_bundle()}</script>"
        f"<script>{TIMED} const values = {values}; (async () => {{"
        f"const {{view}} = await vegaEmbed('#place', {json.dumps(specs[0])}, {{renderer: '{renderer}'}});"
        f"const found = await timed(turn => view.data('curve', values[turn % 2]).runAsync(), {redraws}); {REPORT};"
        "})();</script>"
    )


def in_browser(browser: str, page: str) -> dict[str, list[float]]:
    """Return the milliseconds of each redraw, as measured and posted by the page."""
    posted: queue.Queue[dict[str, list[float]]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the method's name is the standard library's
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            with suppress(ConnectionError):  # the browser asks twice, and drops one answer
                self.wfile.write(page.encode())

        def do_POST(self) -> None:
            posted.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        flags = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}/chromium")
        with subprocess.Popen([browser, *flags, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                return posted.get(timeout=600)
            finally:
                process.terminate()
                process.wait()
                server.shutdown()


def pictures() -> dict[str, Callable[[], bytes]]:
    """Return functions that draw the curve as PNG, by name."""
    points = curve(1)
    svg = svg_of([draw(own_chart(points), last_step=POINTS)])
    spec = vega_spec(decimate(points))

    def matplotlib_png() -> bytes:
        drawing, written = Figure(figsize=(8.0, 4.5), layout="constrained"), io.BytesIO()
        drawing.subplots().plot(*zip(*points, strict=True))
        drawing.savefig(written, format="png", dpi=150)
        return written.getvalue()

    return {
        "our SVG, resvg-py": lambda: bytes(png_of(svg)),
        "our SVG, vl-convert": lambda: vl_convert.svg_to_png(svg, scale=2),
        "Vega-Lite thinned to 600 points, vl-convert": lambda: vl_convert.vegalite_to_png(spec, scale=2),
        "matplotlib, all points": matplotlib_png,
    }


def import_seconds(name: str) -> float:
    """Return the seconds of an import in a fresh interpreter."""
    code = f"import time; started = time.perf_counter(); import {name}; print(time.perf_counter() - started)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def installed_bytes(package: str) -> int:
    """Return the bytes of a distribution's own files."""
    found = 0
    for file in distribution(package).files or ():
        with suppress(OSError):
            found += 0 if file.suffix == ".pyc" else distribution(package).locate_file(file).stat().st_size  # type: ignore[attr-defined]
    return found


def cpu_seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the processor seconds of each call, after a warm-up."""
    taken = []
    for _ in range(repeats + 1):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return taken[1:]


def main() -> None:
    """Print tables."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    print(f"{describe(*PACKAGES.values())}; a curve of {POINTS:,} points; median (minimum-maximum)")
    pages = {
        "our SVG": own_page(),
        "our SVG without the strips that show values": own_page(hovers=False),
        "Vega-Lite, canvas, all points": vega_page("canvas", list),
        "Vega-Lite, SVG, all points": vega_page("svg", list),
        "Vega-Lite, canvas, 600 points": vega_page("canvas", decimate),
        "Vega-Lite, SVG, 600 points": vega_page("svg", decimate),
    }
    if browser:
        print("\n| redraw in Chromium | script and layout, ms | to the frame, ms |\n|---|---|---|")
        for name, page in pages.items():
            found = in_browser(browser, page)
            print(f"| {name} | {spread(found['script'])} | {spread(found['frame'])} |")
    points = curve(1)
    print("\n| in Python | ms of processor time |\n|---|---|")
    works = {"our figure of all points, thinned and written": lambda: own_figure(points)}
    works |= {f"PNG: {name}": picture for name, picture in pictures().items()}
    for name, work in works.items():
        print(f"| {name} | {spread(cpu_seconds(work, repeats), 1e3)} |")
    print(f"\n| page with {FIGURES} curves of {POINTS:,} points | kB |\n|---|---|")
    print(f"| our SVG | {(FIGURES * len(own_figure(points)) + len(STYLE)) / 1e3:,.0f} |")
    script = len(vl_convert.javascript_bundle())
    for name, thin in (("600 points", decimate), ("all points", list)):
        print(f"| Vega-Lite, {name} | {(script + FIGURES * len(json.dumps(vega_spec(thin(points))))) / 1e3:,.0f} |")
    print("\n| package | import, ms | installed, MB | its own requirements |\n|---|---|---|---|")
    for name, package in PACKAGES.items():
        taken = statistics.median(import_seconds(name) for _ in range(repeats)) * 1e3
        needs = sum("extra ==" not in one for one in distribution(package).requires or ())
        print(f"| {package} | {taken:.0f} | {installed_bytes(package) / 1e6:.0f} | {needs} |")


if __name__ == "__main__":
    main()
