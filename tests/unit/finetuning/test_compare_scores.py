"""`orchestrator diff` and `orchestrator report` of real fine-tunings: tests of their scores on the same rows."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from finetune_jobs import WORDS, run, settings

from orchestrator.cli.main import main
from orchestrator.runs.significance import ASSUMPTIONS, HOLM, SEVERAL_METRICS, score_tests
from tests.run_folders import make_run
from train_jobs import predict
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.evaluation.paired_tests import mcnemar_p, paired_tests
from train_jobs.evaluation.scored_rows import read_scored_rows
from train_jobs.readers.sentence_data import read_data

TABLES = {"train": 160, "dev": 80, "other": 70}
PLAN = {
    "job": {"task": "own", "seeds": [1], "train": {"epochs": 1, "global_batch_size": 16}},
    "kind": "finetune",
    "environment": {},
    "data": {},
    "snapshot": {"digest": "c0de"},
    "changes": {},
    "world_size": 1,
    "rows": {},
    "recipe": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables in which the rare label "cancer" goes with the word `not`, in most rows."""
    folder, draw = tmp_path_factory.mktemp("tables"), random.Random(7)
    for name, rows in TABLES.items():
        lines = []
        for _ in range(rows):
            words, rare = draw.choices(WORDS, k=6), draw.random() < 0.4
            right = draw.random() < 0.93
            lines.append(f"{' '.join(['not', *words] if rare == right else words)}\t{'cancer' if rare else 'normal'}")
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def outputs(bert: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the outputs of real jobs: two seeds, a slow one, other rows, and one with two seeds."""
    made = {}
    for name, validation, seeds, rate in (
        ("one", "dev", [1], 3e-3),
        ("two", "dev", [2], 3e-3),
        ("slow", "dev", [1], 1e-6),
        ("elsewhere", "other", [1], 3e-3),
        ("seeds", "dev", [3, 4], 3e-3),
    ):
        data = {"train": folder / "train.tsv", "validation": folder / f"{validation}.tsv", "positive_label": "cancer"}
        more = {"seeds": seeds, "optimizer": {"learning_rate": rate}, "train": {"epochs": 8}}
        place = tmp_path_factory.mktemp(name)
        assert run(place, settings(bert, "own", data, **more)) == 0
        made[name] = place / "out"
    return made


@pytest.fixture
def home(outputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name, place in outputs.items():
        made = make_run(tmp_path / "home", name, plan=PLAN)
        shutil.copytree(place, made.outputs, dirs_exist_ok=True)
    return tmp_path / "home"


def diff(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["diff", *words]) == 0
    return capsys.readouterr().out


def significance(capsys: pytest.CaptureFixture[str], *names: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(diff(capsys, *names, "-o", "json"))["significance"]
    return found


@pytest.mark.usefixtures("home")
def test_diff_tests_the_scores_of_two_runs(outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = significance(capsys, "one", "slow")
    results = [json.loads((outputs[name] / "result.json").read_text())["metrics"] for name in ("one", "slow")]
    by_metric = {test["metric"]: test for test in found["tests"]}
    assert by_metric.keys() == {"accuracy", "f1", "macro_f1", "balanced_accuracy", "matthews", "auroc"}
    for name, test in by_metric.items():
        expected = [result[name] for result in results]
        assert [test["score_a"], test["score_b"]] == pytest.approx(expected, abs=1e-9), name
        assert (test["scored"], test["rows"], test["p_holm"]) == ("dev", 80, None)
    rows = [read_scored_rows((outputs[name] / "scored_rows.json").read_bytes())["dev"] for name in ("one", "slow")]
    label = rows[0].columns["label"]
    right = [
        [found == wanted for found, wanted in zip(side.columns["prediction"], label, strict=True)] for side in rows
    ]
    only = [sum(x and not y for x, y in zip(*pair, strict=True)) for pair in (right, right[::-1])]
    assert by_metric["accuracy"]["p"] == pytest.approx(mcnemar_p(*only))
    assert by_metric["accuracy"]["p"] < 0.01, "the slow run learned nothing"
    assert found["notes"] == [ASSUMPTIONS, SEVERAL_METRICS]
    assert significance(capsys, "one", "slow") == found, "the seed is fixed"
    text = diff(capsys, "one", "slow")
    header = next(line for line in text.splitlines() if line.startswith("dev, 80 rows"))
    assert header.split()[3:] == ["a", "b", "b", "-", "a", "p", "test"]
    assert f"{only[0]} + {only[1]} discordant rows" in text
    assert "permutation, 10,000 rounds" in text
    assert ASSUMPTIONS in text
    assert "per_class" not in text, "tables of result.json are only in -o json"


@pytest.mark.usefixtures("home")
def test_diff_of_several_seeds_names_the_tested_one(
    outputs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((outputs["seeds"] / "result.json").read_text())
    found = significance(capsys, "one", "seeds")
    assert f"seeds: seed {result['best_seed']}, the best of 2 on dev" in found["notes"]
    best = next(one for one in result["seeds"] if one["seed"] == result["best_seed"])
    assert found["tests"][0]["score_b"] == pytest.approx(best["metrics"][found["tests"][0]["metric"]])


def test_runs_that_cannot_be_tested_have_the_reason(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = significance(capsys, "one", "elsewhere")
    assert found["tests"] == []
    assert "no test of one and elsewhere on dev: they were not scored on the same rows: 80 and 70 rows" in str(
        found["notes"]
    )
    (home / "runs/two/outputs/scored_rows.json").unlink()
    assert "no test: no scored_rows.json in two" in diff(capsys, "one", "two")
    (home / "runs/two/outputs/scored_rows.json").write_text("{")
    assert "no test of one and two:" in diff(capsys, "one", "two")
    (home / "runs/two/outputs/result.json").unlink()
    assert significance(capsys, "one", "two") == {"tests": [], "notes": []}


@pytest.mark.long
def test_report_of_three_runs_adjusts_by_holm(home: Path) -> None:
    from orchestrator.client import Orchestrator

    orchestrator = Orchestrator(home=home, environ={})
    one, two, slow = (orchestrator.attach(name)._side(scored=True) for name in ("one", "two", "slow"))
    pairs = [score_tests(one, [other]).tests for other in (two, slow)]
    together = score_tests(one, [two, slow])
    assert HOLM in together.notes
    for test in together.tests:
        raw = sorted(other.p for tests in pairs for other in tests if other.metric == test.metric)
        assert test.p in raw
        smaller = min(1.0, 2 * raw[0])
        assert test.p_holm == pytest.approx(smaller if test.p == raw[0] else max(smaller, raw[1])), test.metric


def test_evaluation_has_the_rows_of_the_fine_tuning(outputs: dict[str, Path], folder: Path, tmp_path: Path) -> None:
    sets = ["--set", "evaluate=true", "--set", "data.positive_label=cancer", "--set", "batching.precision=fp32"]
    model, rows = str(outputs["one"] / "model"), str(folder / "dev.tsv")
    assert predict.main(["--model", model, "--input", rows, "--output", str(tmp_path / "out"), *sets]) == 0
    trained, scored = (
        read_scored_rows((place / "scored_rows.json").read_bytes()) for place in (outputs["one"], tmp_path / "out")
    )
    assert {test.p for test in paired_tests(trained["dev"], scored["input"]) if test.metric != "auroc"} == {1.0}


def test_stored_rows_contain_no_text(outputs: dict[str, Path]) -> None:
    text = (outputs["one"] / "scored_rows.json").read_text()
    assert not [word for word in (*WORDS, "not") if f"{word} " in text or f'{word}"' in text]
    assert len(text) < 80 * 80


def test_training_rows_are_held_back(bert: Path, folder: Path, tmp_path: Path) -> None:
    """Held-back rows of the training table are neither trained on nor in dev, and equal rows stay together."""
    rows = (folder / "train.tsv").read_text().splitlines()
    (tmp_path / "twice.tsv").write_text("\n".join([*rows, *rows[1:]]) + "\n")
    data = {
        "train": tmp_path / "twice.tsv",
        "validation": folder / "dev.tsv",
        "test_fraction": 0.3,
        "test_fraction_from": "train",
    }
    config = settings(bert, "own", data, train={"epochs": 1})
    split = read_data(FinetuneConfig.model_validate(config))
    held_back = split.held_back["held_back"]
    assert len(split.train) + len(held_back) == 320
    assert 0.2 < len(held_back) / 320 < 0.4
    assert not {*split.train.texts} & {*held_back.texts}
    assert len(split.dev["dev"]) == 80
    assert run(tmp_path, config) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["sets"]["test"]["rows"] == len(held_back)
    assert result["steps"] == -(-len(split.train) // 16)
    assert "test_accuracy" in result["metrics"]
    assert read_scored_rows((tmp_path / "out" / "scored_rows.json").read_bytes()).keys() == {"dev", "test"}


def test_split_without_fraction_is_refused() -> None:
    with pytest.raises(ValueError, match="test_fraction_from is train, but test_fraction is not set"):
        FinetuneConfig.model_validate(
            {"init_from": "m", "data": {"train": "a", "validation": "b", "test_fraction_from": "train"}}
        )
