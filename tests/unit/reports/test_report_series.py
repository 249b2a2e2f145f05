"""Series for charts, from the reports of a job."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from orchestrator.reports.charts.charts import Series, collect, decimate, last_step


def _report(step: int, **metrics: float) -> dict[str, object]:
    return {"step": step, "time": 1763712000.0 + step, "metrics": metrics}


def test_collect_sorts_by_step_and_drops_non_finite_values() -> None:
    reports = [
        _report(20, train_loss=5.0),
        _report(10, train_loss=6.0, learning_rate=1e-3),
        _report(30, train_loss=math.nan),
        _report(40, train_loss=math.inf),
    ]

    series = collect(reports)

    assert series["train_loss"] == Series(points=((10, 6.0), (20, 5.0)), left_out=2)
    assert series["learning_rate"] == Series(points=((10, 1e-3),))
    assert last_step(series) == 20
    assert last_step({}) == 0


def test_step_reported_twice_counts_once() -> None:
    series = collect([_report(10, train_loss=math.nan), _report(10, train_loss=4.0)])["train_loss"]
    assert series == Series(points=((10, 4.0),), left_out=0)


def test_decimation_keeps_ends_and_extremes() -> None:
    points = [(step, math.sin(step / 700)) for step in range(1, 100_001)]
    points[31_416] = (points[31_416][0], -50.0)
    points[77_777] = (points[77_777][0], 90.0)

    kept = decimate(points)

    assert 500 < len(kept) <= 600
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert min(kept, key=lambda point: point[1]) == points[31_416]
    assert max(kept, key=lambda point: point[1]) == points[77_777]
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)


@pytest.mark.parametrize("count", [0, 1, 600, 601, 602, 1199])
def test_decimation_of_short_and_barely_long_series(count: int) -> None:
    points = [(step, float(step % 7)) for step in range(count)]
    kept = decimate(points)
    assert len(kept) <= 600
    assert kept == sorted(set(kept))
    if count <= 600:
        assert kept == points


def test_decimation_spreads_over_all_steps() -> None:
    kept = decimate([(step, 1.0 if step % 2 else 0.0) for step in range(60_000)])
    gaps = [after[0] - before[0] for before, after in pairwise(kept)]
    assert max(gaps) < 2 * 60_000 / 299
