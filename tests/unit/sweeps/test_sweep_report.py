"""The report of a sweep: a page with every figure, pictures, and the notebook view."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.reports.pages.sweep_drawings import settings_that_differ, write_pictures
from orchestrator.reports.pages.sweep_page import importance_of, render_sweep, trials_html
from orchestrator.runs.status import RunState
from orchestrator.sweeps.design.sweep_record import SweepState
from orchestrator.sweeps.driver.sweep_status import SweepStatus, TrialRow
from tests.unit.reports.drawings import figures
from tests.unit.sweeps.test_sweep_table import add, make

RATE, BATCH = "optimizer.learning_rate", "train.global_batch_size"


def row(number: int, values: list[float], state: str = "completed", **more: Any) -> TrialRow:
    settings = {RATE: 10.0 ** -(2 + number), BATCH: 16 if number % 2 else 32}
    return TrialRow(
        trial=number,
        state=state,
        settings=settings,
        runs=[f"r{number}"],
        reports=len(values),
        values=values,
        outcome=max(values, default=None),
        best=max(values, default=None),
        started=1000.0 + 60 * number,
        seconds=60.0 * len(values),
        **more,
    )


def status(*rows: TrialRow, **more: Any) -> SweepStatus:
    return SweepStatus(
        **{
            "name": "search-1",
            "state": RunState.COMPLETED,
            "metric": "validation_score",
            "goal": "maximize",
            "trials": 4,
            "ended": len(rows),
            "created": 1000.0,
            "folder": "/x",
            "rows": rows,
            **more,
        }
    )


ROWS = (
    row(0, [0.5, 0.6]),
    row(1, [0.7, 0.8, 0.9], incumbent=True),
    row(2, [0.3], "stopped", why="stopped at report 1: 0.3 x 1.2 < 0.7"),
    row(3, [], "failed", why="<out of memory>"),
)


@pytest.mark.parametrize("options", [[1, 1.0, 2], [0, 0.0]])
def test_page_takes_one_number_as_int_and_float(options: list[float]) -> None:
    """Options such as `[1, 1.0, 2]` have one place for each number, whatever its type."""
    rows = [row(number, [0.5 + number / 100]) for number in range(12)]
    for one in rows:
        one.settings[BATCH] = options[one.trial % len(options)]
    Elements(render_sweep(status(*rows)))
    assert (BATCH in settings_that_differ(rows)) == (len({*options}) > 1)
    assert (BATCH in importance_of("maximize", rows)) == (len({*options}) > 1)


def test_best_so_far_of_completed_trials_comes_first() -> None:
    """The figure ends at the trial of `sweep best`, not at a stopped one with a better outcome."""
    page = render_sweep(status(row(0, [0.9], "stopped"), row(1, [0.5]), row(2, [0.7], incumbent=True)))
    assert "best validation_score from 0.9000 to 0.7000" in page


class Elements(HTMLParser):
    """Start tags with their attributes; refuses tags that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self._open: list[str] = []
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in {"meta"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def of(self, tag: str, kind: str) -> int:
        return sum(name == tag and kind in attributes.get("class", "").split() for name, attributes in self.found)


def test_report_has_every_figure_and_none_is_empty() -> None:
    page = render_sweep(status(*ROWS), {RATE: 0.8, BATCH: 0.2})
    titles = re.findall(r"<figcaption><h2>(.*?)</h2>", page)
    assert titles == [
        "validation_score over reports",
        f"validation_score by {RATE}",
        f"validation_score by {BATCH}",
        "Best validation_score so far",
        "Timeline of the trials",
        "Parallel coordinates",
        "Importance",
    ]
    for drawing in re.findall(r"<figure>.*?</figure>", page, re.DOTALL):
        assert "<polyline" in drawing or "<circle" in drawing or "share" in drawing
        assert "nan" not in drawing
    assert Elements(page).of("polyline", "best") >= 3


def test_stopped_trials_and_the_best_one_are_marked() -> None:
    page = render_sweep(status(*ROWS))
    histories = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)[0]
    assert [kind for kind in ("trial", "stopped", "best") if f'class="line {kind}"' in histories] == [
        "trial",
        "stopped",
        "best",
    ]
    assert histories.index('class="line best"') > histories.index('class="line stopped"'), "drawn last, on top"
    assert "stopped at report 1: 0.3 x 1.2 &lt; 0.7" in page
    assert "&lt;out of memory&gt;" in page
    assert "25% of the finished trials" in page


def test_points_match_their_values() -> None:
    page = render_sweep(status(*ROWS))
    by_rate = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)[1]
    circles = [attributes for tag, attributes in Elements(by_rate).found if tag == "circle"]
    places = {attributes["class"]: (float(attributes["cx"]), float(attributes["cy"])) for attributes in circles}
    assert places["trial"][0] > places["best"][0] > places["stopped"][0], "1e-2, 1e-3, 1e-4"
    assert places["trial"][0] - places["best"][0] == pytest.approx(places["best"][0] - places["stopped"][0], abs=0.2)
    assert places["best"][1] < places["trial"][1] < places["stopped"][1], "larger values are higher"


def test_best_so_far_follows_the_goal() -> None:
    for goal, words in (("maximize", "from 0.6000 to 0.9000"), ("minimize", "from 0.6000 to 0.3000")):
        completed = (*ROWS[:2], row(2, [0.3]))
        assert f"best validation_score {words}" in render_sweep(status(*completed, goal=goal))


def test_new_sweep_is_reported_as_such() -> None:
    page = render_sweep(status(row(0, []), state=RunState.RUNNING))
    assert "No trial has reported validation_score yet." in page
    assert "no trial has finished" in page
    Elements(render_sweep(status(state=RunState.RUNNING)))


def test_page_is_self_contained() -> None:
    page = render_sweep(status(*ROWS, name="<b>"))
    assert "<b>" not in page.replace("<b></b>", "")
    assert "http" not in page.replace("http-equiv", "").replace("default-src", "")
    assert "<script" not in page


def test_importance_names_the_effective_setting() -> None:
    draw, rows = random.Random(0), []
    for number in range(40):
        rate = 10 ** draw.uniform(-6, -2)
        settings = {RATE: rate, BATCH: draw.choice([16, 32]), "train.seed": 3}
        came = abs(rate - 1e-3) ** 0.2 + draw.gauss(0, 0.001)
        rows.append(TrialRow(trial=number, state="completed", settings=settings, runs=[], outcome=came))
    rows.append(TrialRow(trial=40, state="failed", settings={RATE: 1.0, BATCH: 16, "train.seed": 3}, runs=[]))
    found = importance_of("minimize", rows)
    assert [*found] == [RATE, BATCH], "constant settings are omitted"
    assert found[RATE] > 0.8
    assert sum(found.values()) == pytest.approx(1)


def test_importance_needs_enough_trials(tmp_path: Path) -> None:
    found = make(tmp_path)
    add(found, [3.0], "completed", 3.0)
    assert found.importance() == {}


def test_command_writes_page_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    found = make(tmp_path)
    for outcome in (3.0, 2.0, 1.0, 4.0, 5.0):
        add(found, [outcome + 1, outcome], "completed", outcome)
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    assert main(["sweep", "report", found.name, "--to", "page.html", "--png", "pictures"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "page.html"
    Elements(Path("page.html").read_text())
    assert Path("pictures", "reports.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["sweep", "report", found.name, "--to", "nowhere/page.html"]) == 1
    assert "error[storage]: cannot write the report" in capsys.readouterr().err


def test_each_setting_has_a_picture(tmp_path: Path) -> None:
    paths = write_pictures(status(*ROWS), tmp_path / "new")
    assert [path.name for path in paths] == ["reports.png", f"{RATE}.png", f"{BATCH}.png"]
    assert all(path.stat().st_size > 5000 for path in paths)


def test_notebook_view_has_the_trials() -> None:
    shown = trials_html(status(*ROWS))
    assert "search-1: 4 of 4 trials" in shown
    assert shown.count("<tr>") == 5
    assert "1 best" in shown
    Elements(shown)


@pytest.mark.parametrize("log", [True, False])
def test_searched_logarithm_has_a_logarithmic_axis(tmp_path: Path, log: bool) -> None:
    """Rates that double are equally far apart, also if the trials cover a small part of the range."""
    found = make(tmp_path, space={RATE: {"low": 1e-5, "high": 1e-2, "log": log}})
    for number in range(4):
        add(found, [3.0, 2.0 + number], "completed", 2.0 + number, settings={RATE: 1e-3 * 2**number})
    found.folder.write_state(SweepState(state=RunState.COMPLETED))
    page = found.report(tmp_path / "page.html").read_text()
    (places,) = (points for title, points in figures(page).items() if title.endswith(f"by {RATE}"))
    across = sorted({x for x, _ in places})
    steps = [after - before for before, after in pairwise(across)]
    assert len(steps) == 3
    assert (steps == pytest.approx([steps[0]] * 3, rel=1e-3)) == log
