"""All tasks of GLUE as one job: one run per task, the table of the paper, the zip for the server."""

from __future__ import annotations

import json
import random
import re
import shutil
import statistics
import zipfile
from pathlib import Path
from typing import Any

import pytest
from finetune_jobs import WORDS, result_of, run, settings

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config.tasks import GLUE_SUITE, GLUE_TASKS, SentenceTask
from train_jobs.engine.runtime.boundary import PREEMPTED
from train_jobs.engine.runtime.stop import Preempted
from train_jobs.tasks import replicates
from train_jobs.tasks.sentences import glue as glue_results
from train_jobs.tasks.sentences.glue import PAPER, glue_table, table_text

ROWS = {"train": 24, "dev": 12, "test": 6}


def write_task(folder: Path, task: SentenceTask) -> None:
    """Write the files of a task with their official names and columns."""
    draw = random.Random(task.name)
    for split, file in task.files.items():
        lines = []
        columns = list(file.header or ["index", task.text, *([task.pair] if task.pair else []), "x"])
        if file.labelled and task.label not in columns:
            columns.append(task.label)
        for number in range(ROWS[split.split("_")[0]]):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(2)]
            label = task.labels[number % len(task.labels)] if task.labels else f"{draw.random() * 9 - 2:.3f}"
            row = {task.text: texts[0], task.pair: texts[1], task.label: label, "index": str(number)}
            lines.append("\t".join(row.get(column, "-") for column in columns))
        path = folder / file.paths[0]
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("\n".join([*([] if file.header else ["\t".join(columns)]), *lines]) + "\n")


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a GLUE folder with all tasks and few rows."""
    folder = tmp_path_factory.mktemp("glue")
    for task in GLUE_SUITE.values():
        write_task(folder, task)
    return folder


def job(bert: Path, glue: Path, **sections: Any) -> dict[str, Any]:
    per_task = {"RTE": {"train": {"epochs": 2}}, "mrpc": {"seeds": [3, 4]}}
    return settings(bert, "glue", {"glue": glue}, per_task=per_task, train={"epochs": 1}, **sections)


@pytest.fixture(scope="module")
def done(bert: Path, glue: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outputs of the job, preempted once in QNLI; the server accepts files of 6 rows."""
    place = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(glue_results, "FILES", {name: (task, 6) for name, (task, _) in glue_results.FILES.items()})
        whole = replicates.run_seed

        def stopped(job: Any, *rest: Any, **more: Any) -> dict[str, Any]:
            if job.config.task == "QNLI":
                raise Preempted
            return whole(job, *rest, **more)

        with pytest.MonkeyPatch.context() as stopping:
            stopping.setattr(replicates, "run_seed", stopped)
            assert run(place, job(bert, glue)) == PREEMPTED
        trained = []

        def record_call(job: Any, *rest: Any, **more: Any) -> dict[str, Any]:
            trained.append(job.config.task)
            return whole(job, *rest, **more)

        patched.setattr(replicates, "run_seed", record_call)
        assert run(place, job(bert, glue)) == 0
        assert trained == ["QNLI", "RTE", "WNLI"], "what was done is not repeated"
    return place / "out"


def test_each_task_is_separate_run(done: Path) -> None:
    result = result_of(done.parent)
    assert list(result["tasks"]) == list(GLUE_TASKS)
    assert result["missing"] == []
    for name in GLUE_TASKS:
        one = json.loads((done / name / "result.json").read_text())
        assert one == result["tasks"][name]
        assert (done / name / "model" / "model.safetensors").is_file()
    assert [len(list(read_reports(done / name / "metrics.jsonl"))) > 0 for name in GLUE_TASKS] == [True] * 9


def test_finished_task_with_other_rows_is_refused(
    bert: Path, glue: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(glue, tmp_path / "glue")
    dev = tmp_path / "glue" / "CoLA" / "dev.tsv"
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:-1]))
    assert run(done.parent, job(bert, tmp_path / "glue")) == 1
    message = capsys.readouterr().err
    assert "finished run with another configuration" in message
    assert re.search(r"changed +scored\.dev: \w+ -> \w+$", message, re.MULTILINE)


def test_damaged_finished_task_is_run_again(
    bert: Path, glue: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task with several seeds whose own models are intact only copies the best one again."""
    shutil.copytree(done, tmp_path / "out")
    for name in ("CoLA", "MRPC"):
        weights = tmp_path / "out" / name / "model" / "model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    trained, whole = [], replicates.run_seed

    def record_call(job: Any, *rest: Any, **more: Any) -> dict[str, Any]:
        trained.append(job.config.task)
        return whole(job, *rest, **more)

    monkeypatch.setattr(replicates, "run_seed", record_call)
    assert run(tmp_path, job(bert, glue)) == 0
    assert trained == ["CoLA"]
    for name in ("CoLA", "MRPC"):
        model = Path(name) / "model" / "model.safetensors"
        assert (tmp_path / "out" / model).read_bytes() == (done / model).read_bytes()


def test_other_seeds_train_those_that_are_missing(
    bert: Path, glue: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done, tmp_path / "out")
    trained, whole = [], replicates.run_seed

    def record_call(job: Any, seed: int, *rest: Any, **more: Any) -> dict[str, Any]:
        trained.append((job.config.task, seed))
        return whole(job, seed, *rest, **more)

    monkeypatch.setattr(replicates, "run_seed", record_call)
    changed = job(bert, glue)
    changed["per_task"] |= {"mrpc": {"seeds": [4, 5]}, "CoLA": {"seeds": [42, 43]}}
    assert run(tmp_path, changed) == 0
    assert sorted(trained) == [("CoLA", 42), ("CoLA", 43), ("MRPC", 5)]
    tasks = result_of(tmp_path)["tasks"]
    assert [[run["seed"] for run in tasks[name]["seeds"]] for name in ("CoLA", "MRPC")] == [[42, 43], [4, 5]]
    assert tasks["MRPC"]["seeds"][0] == result_of(done.parent)["tasks"]["MRPC"]["seeds"][1]


def test_other_seed_of_a_finished_task_is_refused(
    bert: Path, glue: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (done / "CoLA" / "result.json").read_text()
    changed = job(bert, glue)
    changed["per_task"]["CoLA"] = {"seeds": [7]}
    assert run(done.parent, changed) == 1
    assert re.search(r"changed +seeds: 42 -> 7$", capsys.readouterr().err, re.MULTILINE)
    assert (done / "CoLA" / "result.json").read_text() == before


def test_task_may_have_other_epochs_and_seeds(done: Path) -> None:
    tasks = result_of(done.parent)["tasks"]
    assert (tasks["RTE"]["steps"], tasks["QNLI"]["steps"]) == (4, 2)
    assert [run["seed"] for run in tasks["MRPC"]["seeds"]] == [3, 4]
    assert tasks["CoLA"]["seed"] == 42


def test_table_matches_paper_layout(done: Path) -> None:
    result = result_of(done.parent)
    cells = {cell["name"]: cell for cell in result["table"]["cells"]}
    assert list(cells) == ["MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "WNLI"]
    tasks = result["tasks"]
    mrpc = [run["metrics"]["f1"] for run in tasks["MRPC"]["seeds"]]
    assert cells["MRPC"]["mean"] == pytest.approx(100 * statistics.fmean(mrpc))
    assert cells["MRPC"]["sd"] == pytest.approx(100 * statistics.stdev(mrpc))
    assert (cells["MRPC"]["seeds"], cells["MRPC"]["metric"]) == (2, "F1")
    assert cells["MNLI-mm"]["mean"] == pytest.approx(100 * tasks["MNLI"]["metrics"]["dev_mismatched_score"])
    assert cells["STS-B"]["mean"] == pytest.approx(100 * tasks["STS-B"]["metrics"]["spearman"])
    assert cells["CoLA"]["metric"] == "Matthews"
    for name, set_name in (("MNLI-m", "dev_matched"), ("MNLI-mm", "dev_mismatched")):
        ends = [100 * end for end in tasks["MNLI"]["intervals"][f"{set_name}_score"]]
        assert [cells[name]["low"], cells[name]["high"]] == pytest.approx(ends)
        assert cells[name]["low"] <= cells[name]["mean"] <= cells[name]["high"]
        assert cells[name]["base_rate"] == pytest.approx(100 * tasks["MNLI"]["sets"][set_name]["base_rate"])
    assert cells["RTE"]["base_rate"] == pytest.approx(100 * tasks["RTE"]["sets"]["dev"]["base_rate"])
    assert (cells["MRPC"]["base_rate"], cells["STS-B"]["base_rate"]) == (None, None), "only beside accuracy"
    assert cells["MRPC"]["low"] == pytest.approx(100 * tasks["MRPC"]["metrics"]["f1"]["low"])
    nine = [cell["mean"] for name, cell in cells.items() if name != "WNLI"]
    assert result["table"]["average"] == pytest.approx(statistics.fmean(nine))
    scores = [tasks[name]["metrics"]["score"] for name in GLUE_TASKS if name != "MRPC"]
    scores.append(tasks["MRPC"]["metrics"]["score"]["mean"])
    assert result["table"]["glue_score"] == pytest.approx(100 * statistics.fmean(scores))


def test_zip_has_format_of_server(done: Path) -> None:
    with zipfile.ZipFile(done / "submission.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(texts) == sorted(f"{name}.tsv" for name in glue_results.FILES)
    for name, text in texts.items():
        folder = "MNLI" if name in ("AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv") else name.removesuffix(".tsv")
        assert text == (done / folder / "predictions" / name).read_text()
        assert [line.split("\t")[0] for line in text.splitlines()] == ["index", *map(str, range(6))]
    labels = {line.split("\t")[1] for line in texts["AX.tsv"].splitlines()[1:]}
    assert labels <= {"entailment", "neutral", "contradiction"}
    assert all(0 <= float(line.split("\t")[1]) <= 5 for line in texts["STS-B.tsv"].splitlines()[1:])
    result = result_of(done.parent)
    best = result["tasks"]["MRPC"]["best_seed"]
    assert texts["MRPC.tsv"] == (done / "MRPC" / f"seed-{best}" / "predictions" / "MRPC.tsv").read_text()
    assert result["submission"] == str(done / "submission.zip")


def test_job_metrics_are_those_of_its_tasks(done: Path) -> None:
    reports = [report for _, report in read_reports(done / "metrics.jsonl")]
    assert [report["step"] for report in reports] == [*range(1, 10), 9]
    table = result_of(done.parent)["table"]
    fractions = {f"validation_{cell['name']}": pytest.approx(cell["mean"] / 100) for cell in table["cells"]}
    assert reports[-2]["metrics"] == fractions, "fractions of 1 like all scores; only the table is in percent"
    assert reports[-1]["metrics"] == {"validation_glue_score": pytest.approx(table["glue_score"] / 100)}


def test_other_configuration_does_not_reuse_output(
    bert: Path, glue: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(done.parent, job(bert, glue), "--set", "optimizer.learning_rate=0.002") == 1
    printed = capsys.readouterr().err
    assert (
        "error[conflict]: cannot start: the output folder contains a finished run with another configuration" in printed
    )
    assert "optimizer.learning_rate: 0.003 -> 0.002" in printed
    assert run(done.parent, job(bert, glue), "--set", "resume=never") == 1
    assert "error[conflict]: cannot start: the output folder contains a finished run\n" in capsys.readouterr().err
    assert run(done.parent, job(bert, glue), "--set", "data.max_length=24") == 1
    assert "start.max_length: 32 -> 24" in capsys.readouterr().err


def test_tasks_without_data_are_reported_and_omit_zip(
    bert: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few"
    for name in ("RTE", "STS-B"):
        (few / name).mkdir(parents=True)
        for path in (glue / name).iterdir():
            (few / name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "submission.zip").write_text("of an earlier run")
    assert run(tmp_path, settings(bert, "glue", {"glue": few}, train={"epochs": 1})) == 0
    printed = capsys.readouterr().out
    assert f"warning: {few} has no training data for CoLA, SST-2, MRPC, QQP, MNLI, QNLI, WNLI: skipped" in printed
    assert "warning: no submission.zip: GLUE's server would reject these predictions\n  CoLA.tsv: missing" in printed
    assert "  RTE.tsv: 6 predictions, need 3,000" in printed
    assert not (tmp_path / "out" / "submission.zip").exists()
    result = result_of(tmp_path)
    assert result["submission"] is None
    assert result["missing"] == ["CoLA", "SST-2", "MRPC", "QQP", "MNLI", "QNLI", "WNLI"]
    assert (result["table"]["average_of"], result["table"]["glue_score_of"]) == (2, 2)
    assert "of the 2 of 9 above" in printed


def test_own_dev_file_of_mnli_is_one_column(
    bert: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(glue / "MNLI", tmp_path / "few" / "MNLI")
    own = {"MNLI": {"data": {"validation": str(glue / "MNLI" / "dev_matched.tsv")}}}
    assert run(tmp_path, settings(bert, "glue", {"glue": tmp_path / "few"}, per_task=own, train={"epochs": 1})) == 0
    result = result_of(tmp_path)
    (cell,) = result["table"]["cells"]
    accuracy, base_rate = (result["tasks"]["MNLI"][key] for key in ("metrics", "sets"))
    assert (cell["name"], cell["mean"]) == ("MNLI", 100 * accuracy["accuracy"])
    assert cell["base_rate"] == pytest.approx(100 * base_rate["dev_matched"]["base_rate"])
    assert "of the 1 of 9 above" in capsys.readouterr().out


def test_folder_without_any_task_is_refused(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, settings(bert, "glue", {"glue": tmp_path})) == 2
    assert f"error[data]: no task of GLUE is in {tmp_path}" in capsys.readouterr().err


def test_bad_rows_of_last_task_reported_before_training(
    bert: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    for name in ("RTE", "WNLI"):
        write_task(bad, GLUE_SUITE[name])
    path = bad / "WNLI" / "train.tsv"
    path.write_text(path.read_text() + "one\ttab\n")
    assert run(tmp_path, settings(bert, "glue", {"glue": bad})) == 2
    assert f"{path}:26: 1 tabs, need 4" in capsys.readouterr().err
    assert not (tmp_path / "out" / "RTE").exists()


def test_limits_of_last_task_are_checked_before_training(
    bert: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RTE", "WNLI"):
        shutil.copytree(glue / name, tmp_path / "few" / name)
    own = {"WNLI": {"data": {"max_length": 4096}}}
    assert run(tmp_path, settings(bert, "glue", {"glue": tmp_path / "few"}, per_task=own, train={"epochs": 1})) == 2
    assert "error[spec]: per_task.WNLI.data.max_length 4096 is more than the" in capsys.readouterr().err
    assert not (tmp_path / "out" / "RTE").exists()


def test_averages_match_paper() -> None:
    """Devlin et al. 2019, table 1: BERT-base 79.6, BERT-large 82.1, of nine columns."""
    for average, figures in {
        79.6: (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
        82.1: (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
    }.items():
        results: dict[str, dict[str, Any]] = {}
        for cell, figure in zip(PAPER, figures, strict=True):
            found = results.setdefault(cell.task, {"metrics": {"score": 0.0, "collapsed": 0.0}})
            found["metrics"][cell.key] = figure / 100
        table = glue_table(results)
        assert round(table["average"], 1) == average
        assert f"average   {average:6.1f}" in table_text(table)


def test_table_text_shows_spread_metric_and_collapses() -> None:
    figures = {"spearman": {"mean": 0.858, "sd": 0.0123}, "score": {"mean": 0.86, "sd": 0.01}}
    several = {"metrics": figures, "collapsed": 2, "seeds": [{}] * 5}
    one = {"metrics": {"accuracy": 0.5634, "score": 0.5634, "collapsed": 1.0}}
    figures["spearman"] |= {"low": 0.8411, "high": 0.87}
    rte = {
        "metrics": {"accuracy": 0.664, "score": 0.664, "collapsed": 0.0},
        "intervals": {"accuracy": [0.606, 0.722]},
        "sets": {"dev": {"base_rate": 0.527}},
    }
    shown = table_text(glue_table({"STS-B": several, "RTE": rte}))
    assert "  STS-B       85.8 +-  1.2 Spearman, 95% 84.1 to 87.0, 5 seeds, 2 collapsed" in shown
    assert "  RTE         66.4         accuracy, 95% 60.6 to 72.2, most frequent label 52.7, 1 seed" in shown
    assert "dev also chose checkpoint and seed" in shown
    figures["spearman"] = {"mean": 0.858, "sd": 0.0123}
    text = table_text(glue_table({"STS-B": several, "WNLI": one}))
    assert "  STS-B       85.8 +-  1.2 Spearman, 5 seeds, 2 collapsed" in text
    assert "  average     85.8         of the 1 of 9 above" in text
    assert "  WNLI        56.3         accuracy, 1 seed, 1 collapsed; not in the paper" in text
    assert "  GLUE score  71.2         of 2 of 9 tasks" in text
