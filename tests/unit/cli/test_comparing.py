"""The commands diff and cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.run_folders import PLAN, make_run, report
from tests.unit.cli.conftest import Command

LONG = "/home/someone/projects/with/a/rather/long/path/to/the/text/of/notes.txt"


def plan(**changes: Any) -> dict[str, Any]:
    whole = {
        **PLAN,
        "spec": {"train": {"steps": 100}, "tags": {}},
        "environment": {"torch": "2.13.0"},
        "data": {"name": "a.txt", "sha256": "aa"},
        "snapshot": {"digest": "c0de"},
        "world_size": 2,
        "changes": {},
    }
    return {**whole, **changes}


def plan_with_price(price: float) -> dict[str, Any]:
    compute = {**PLAN["compute"], "price_per_hour": price}
    changes = {"compute.price_per_hour": {"value": price, "from": "job.yaml:7"}}
    return plan(compute=compute, changes=changes)


def test_diff_fits_80_columns(home: Path, orchestrator: Command, on_terminal: Command) -> None:
    report(make_run(home, "one", plan=plan()), 100, validation_unigram_entropy=5.8175123456)
    other = plan(
        spec={"train": {"steps": 200}, "tags": {"team": "nlp"}, "data": {"text": [LONG, LONG]}},
        data={"name": LONG, "sha256": "bb"},
        snapshot={"digest": "beef"},
    )
    report(make_run(home, "two", plan=other), 50, validation_unigram_entropy=5.8)
    for name in ("one", "two"):
        folder = home / "runs" / name / "code"
        folder.mkdir()
        (folder / "loop.py").write_text(f"{name}\n")
    (home / "runs/two/code/new.py").touch()
    assert f"a.txt -> {LONG}" in orchestrator("diff", "one", "two").out, "output to a pipe is not truncated"
    done = on_terminal("diff", "one", "two")
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == ["a  one", "b  two"]
    assert "  train.steps  100 -> 200" in lines
    assert "  tags.team    (none) -> nlp" in lines
    assert "  sha256  aa -> bb" in lines
    assert lines[lines.index("  name") + 1] == "    a  a.txt"
    assert lines[lines.index("  name") + 2].startswith("    b  /home/someone/")
    assert lines[lines.index("code") + 1 :][:2] == ["  added    new.py", "  changed  loop.py"]
    entropy = next(line for line in lines if line.startswith("validation_unigram_entropy"))
    assert entropy.split()[1:] == ["5.81751", "5.8", "-0.0175123"]
    assert not [line for line in lines if line.startswith("+")]
    assert "-one\n+two" in orchestrator("diff", "one", "two", "--code").out


def test_long_diff_truncated_empty_diff_reported(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", plan=plan())
    make_run(home, "two", plan=plan(snapshot={"digest": "beef"}))
    make_run(home, "three", plan=plan())
    for number in range(25):
        folder = home / "runs/two/code"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:02d}.py").touch()
    out = orchestrator("diff", "one", "two").out
    assert out.count("  added ") == 20
    assert "  and 5 more files" in out
    assert "same spec, compute, environment, data and code" in orchestrator("diff", "one", "three").out
    assert "same spec" not in out


def test_diff_shows_digest_of_code_on_another_machine(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(home, "one", plan=plan())
    make_run(home, "two", plan=plan(snapshot={"digest": "beef"}))
    monkeypatch.setattr("orchestrator.backends.local.backend.LocalBackend.folder", lambda self, name: None)
    assert "  digest  c0de -> beef" in orchestrator("diff", "one", "two").out


def test_diff_of_fine_tunings_has_dotted_keys(home: Path, orchestrator: Command) -> None:
    """Sections of the spec, its lists and the results are rows of their own, never a cell of JSON."""
    for name, rate, score in (("one", 1e-3, 0.5), ("two", 5e-5, 0.75)):
        sources = [{"path": "a.csv", "weight": rate}, {"path": "b.csv", "weight": 1.0}]
        run = make_run(home, name, plan=plan(spec={"train": {"epochs": 3, "rate": rate}, "data": {"sources": sources}}))
        result = {
            "task": "own",
            "metrics": {"accuracy": score},
            "intervals": {"accuracy": [0.1, 0.9]},
            "sets": {"dev": {"rows": 9, "per_class": {"ham": {"f1": score}}, "confusion": [[1, 2], [3, 3]]}},
            "config": {"train": {"rate": rate, "epochs": 3}},
        }
        (run.outputs / "result.json").write_text(json.dumps(result))
    done = orchestrator("diff", "one", "two")
    assert "{" not in done.out
    lines = [line.split() for line in done.out.splitlines()]
    assert ["train.rate", "0.001", "->", "5e-05"] in lines
    assert ["data.sources.0.weight", "0.001", "->", "5e-05"] in lines
    assert ["metrics.accuracy", "0.5", "0.75", "0.25"] in lines
    assert "per_class" not in done.out, "tables of a result are only in -o json"
    found = orchestrator("diff", "one", "two", "-o", "json").json
    assert found["results"]["metrics.accuracy"] == {"a": 0.5, "b": 0.75, "difference": 0.25}
    assert found["results"]["sets.dev.per_class.ham.f1"] == {"a": 0.5, "b": 0.75, "difference": 0.25}
    assert not any(isinstance(value, dict) for pair in found["results"].values() for value in pair.values())


def test_diff_needs_two_runs(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", plan=plan())
    assert orchestrator("diff", "one").code == 2
    assert orchestrator("diff", "one", "one", "one").code == 2
    assert orchestrator("diff", "one", "@last", "-o", "json").json["a"] == "one"
    assert orchestrator("diff", "one", "missing").code == 5


def test_cost_of_a_run(home: Path, orchestrator: Command) -> None:
    attempts = [{"started": 0.0, "ended": 1800.0, "step": 50}, {"started": 2000.0, "ended": 3800.0}]
    run = make_run(home, "one", plan=plan_with_price(36.0), attempts=attempts)
    report(run, 20, at=900.0)
    assert orchestrator("cost", "one").out.splitlines() == [
        "one",
        "  node hours     1 h: 2 attempts on 1 node",
        "  process hours  2 h",
        "  price          $36.00 per node and hour (job.yaml:7)",
        "  cost           $36.00",
        "  repeated       30 steps done again after a restart, 15 min 00 s, $9.00",
    ]
    document = orchestrator("cost", "one", "-o", "json").json
    assert document["runs"][0]["repeated_cost"] == 9.0
    assert document["total"]["cost"] == 36.0


def test_cost_counts_a_run_once(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", plan=plan(), attempts=[{"started": 0.0, "ended": 3600.0}])
    document = orchestrator("cost", "one", "local://one", "one", "-o", "json").json
    assert (len(document["runs"]), document["total"]["node_hours"]) == (1, 1.0)


def test_cost_without_price_shows_hours(home: Path, orchestrator: Command) -> None:
    make_run(home, "one", plan=plan(), attempts=[{"started": 0.0, "ended": 7200.0}])
    lines = orchestrator("cost", "one").out.splitlines()
    assert "  node hours     2 h: 1 attempt on 1 node" in lines
    assert "  cost           no price (set it at submission: --set compute.price_per_hour=USD)" in lines
    assert not [line for line in lines if "repeated" in line]
    assert orchestrator("cost", "one", "-o", "json").json["total"] == {
        "node_hours": 2.0,
        "process_hours": 4.0,
        "repeated_node_hours": 0.0,
        "cost": None,
        "runs_without_price": 1,
    }


def test_cost_of_all_runs_is_their_sum(home: Path, orchestrator: Command) -> None:
    hour = [{"started": 0.0, "ended": 3600.0}]
    make_run(home, "free", plan=plan(), attempts=hour)
    make_run(home, "dear", plan=plan_with_price(36.0), attempts=hour, age=1)
    make_run(home, "cheap", plan=plan_with_price(0.5), attempts=hour, age=2)
    (make_run(home, "bad", age=3).path / "plan.json").write_text("{")
    done = orchestrator("cost", "--all")
    assert done.code == 0
    assert [line.split() for line in done.out.splitlines()] == [
        ["RUN", "NODE", "HOURS", "PROCESS", "HOURS", "COST", "REPEATED"],
        ["free", "1", "h", "2", "h"],
        ["dear", "1", "h", "2", "h", "$36.00"],
        ["cheap", "1", "h", "2", "h", "$0.50"],
        ["total", "3", "h", "6", "h", "$36.50"],
        [
            *("1", "of", "3", "runs:", "no", "price"),
            *("(set", "it", "at", "submission:", "--set", "compute.price_per_hour=USD)"),
        ],
    ]
    assert "run bad: it is damaged; its cost is not counted" in done.err
    assert orchestrator("cost", "bad").code == 1


def test_cost_of_short_and_restarted_runs_is_legible(home: Path, orchestrator: Command) -> None:
    """42 s are not 0.0116 hours, and the column of repeated work is explained."""
    make_run(home, "short", plan=plan(), attempts=[{"started": 0.0, "ended": 42.0}])
    assert "  node hours     42 s: 1 attempt on 1 node" in orchestrator("cost", "short").out.splitlines()
    assert "REPEATED: " not in orchestrator("cost", "--all").out, "nothing was repeated"
    attempts = [{"started": 0.0, "ended": 1800.0, "step": 50}, {"started": 2000.0, "ended": 3800.0}]
    report(make_run(home, "again", plan=plan(), attempts=attempts), 20, at=900.0)
    *_, explained, unpriced = orchestrator("cost", "--all").out.splitlines()
    assert explained.startswith("REPEATED: node hours of steps that were done again")
    assert unpriced.startswith("2 of 2 runs: no price")


def test_cost_needs_runs_or_all(home: Path, orchestrator: Command) -> None:
    assert orchestrator("cost", "--all").out == ""
    make_run(home, "one", plan=plan())
    for words in (("cost",), ("cost", "one", "--all")):
        assert orchestrator(*words).code == 2
