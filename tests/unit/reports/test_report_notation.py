"""Notation of numbers, ticks and times in a report."""

from __future__ import annotations

import pytest

from orchestrator.reports.charts.axes import moment, nice_ticks, number, percent, tick_label
from orchestrator.support.formatting import counted, duration


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 7038, ["0", "2,000", "4,000", "6,000"]),
        (0, 24_000, ["0", "5k", "10k", "15k", "20k"]),
        (0, 1_000_000, ["0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M"]),
        (3.4, 10.3, ["4", "6", "8", "10"]),
        (0, 6e-4, ["0", "2e-4", "4e-4", "6e-4"]),
        (0, 1.1e-3, ["0", "5e-4", "1e-3"]),
        (4e-4, 1.4e-3, ["4e-4", "6e-4", "8e-4", "1e-3", "1.2e-3", "1.4e-3"]),
        (0.26, 0.81, ["0.4", "0.6", "0.8"]),
        (-1.0, 1.0, ["-1.0", "-0.5", "0", "0.5", "1.0"]),
        (0, 5e13, ["0", "1e13", "2e13", "3e13", "4e13", "5e13"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, labels: list[str]) -> None:
    ticks = nice_ticks(low, high, most=6)
    assert [tick_label(tick, ticks[1] - ticks[0]) for tick in ticks] == labels


@pytest.mark.parametrize("most", [6, 8])
@pytest.mark.parametrize("high", [1e-9, 0.3, 0.7, 1, 1.01, 3, 5, 9.99, 47, 12_345, 8e8])
def test_ticks_are_in_range_and_limited_in_number(high: float, most: int) -> None:
    ticks = nice_ticks(0.0, high, most=most)
    assert 2 <= len(ticks) <= most
    assert ticks[0] == 0
    assert ticks[-1] <= high * (1 + 1e-6)


def test_ticks_of_steps_are_integers() -> None:
    assert nice_ticks(0, 1, most=6, whole=True) == [0, 1]
    assert nice_ticks(0, 3, most=6, whole=True) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.21349, "5.213"),
        (0.38, "0.3800"),
        (1840.4, "1,840"),
        (65.4321, "65.43"),
        (0, "0"),
        (2.5e-4, "2.5e-4"),
        (-3.21, "-3.210"),
        (1e15, "1e15"),
    ],
)
def test_number_is_short(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3725, "1 h 02 min"),
        (90_061, "1 d 1 h"),
    ],
)
def test_duration_has_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_percent_moment_and_counted() -> None:
    assert percent(0.4375) == "43.8%"
    assert moment(1763712000.0) == "2025-11-21 08:00 UTC"
    assert [counted(1, "file"), counted(1204, "file")] == ["1 file", "1,204 files"]
    assert counted(2, "process", "processes") == "2 processes"
