"""Fine-tuning as a job kind: spec, counted rows, plan, Azure request."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.submission import build_request, job_documents
from orchestrator.cli.ui.completers import recipes, tasks
from orchestrator.cli.ui.spec_flags import kind_or_file
from orchestrator.estimates.pace import LAUNCH_OF_LAYER
from orchestrator.jobs.finetune.plan import FinetunePlan
from orchestrator.jobs.finetune.spec import FinetuneSpec
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.jobs.registry import kind_names
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.jobs.row_counts import count_rows
from orchestrator.specs.resolved import Flag, Resolved
from orchestrator.support.errors import DataError, SpecError
from tests.conftest import files_of, write_bert
from train_jobs.artifacts.task_files import TaskFile
from train_jobs.config.finetune import ExamplesConfig
from train_jobs.config.tasks import GLUE_TASKS
from train_jobs.readers.sentence_data import Examples, TaskData, read_data

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
MODEL = "init_from=bert"
SHORT = "data.max_length=32"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    """Create a model of 64 positions, a GLUE folder with MRPC and MNLI, and custom tables."""
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path / "bert")
    write_tables(tmp_path / "glue", "MRPC", {"train": 70, "dev": 8, "test": 5})
    sets = {"dev_matched": 4, "dev_mismatched": 3, "test_matched": 2, "test_mismatched": 1}
    write_tables(tmp_path / "glue", "MNLI", {"train": 40, **sets})
    (tmp_path / "glue" / "diagnostic").mkdir()
    (tmp_path / "glue" / "diagnostic" / "diagnostic.tsv").write_text("index\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.csv").write_text('review,stars\n"a line\nand another",1\nbad,0\ngood,1\n')
    (tmp_path / "own" / "dev.csv").write_text("review,stars\nbad,0\n")
    return tmp_path


def write_tables(glue: Path, task: str, rows: dict[str, int]) -> None:
    (glue / task).mkdir(parents=True)
    for split, count in rows.items():
        # without a newline at the end of the last row
        (glue / task / f"{split}.tsv").write_text("\n".join(["header", *(["1\ta\tb"] * count)]))


def resolve(*sets: str, flags: dict[str, Flag] | None = None, **more: Any) -> Resolved:
    """Resolve a spec: `data=FOLDER` is --data, every other flag is --set."""
    folder = next((text.removeprefix("data=") for text in sets if text.startswith("data=")), None)
    others = [text for text in (MODEL, *sets) if not text.startswith("data=")]
    given = {**({"data": Flag(folder, "--data")} if folder else {}), **(flags or {})}
    return resolve_spec("finetune", sets=others, flags=given, environ=NO_GPU, **more)


def plan(*sets: str, **more: Any) -> FinetunePlan:
    found = make_plan(resolve(SHORT, *sets, **more), home=Path("home"))
    assert isinstance(found, FinetunePlan)
    return found


def test_command_line_offers_finetune() -> None:
    assert [kind_or_file(name) for name in kind_names()] == kind_names()
    arguments = type("Arguments", (), {"kind": "finetune"})()
    assert recipes(parsed_args=arguments) == ["entities", "glue", "glue-roberta", "glue-stable", "squad"]
    assert {"MRPC", "glue", "SQuAD-2.0", "NER", "own"} <= {*tasks()}


def test_glue_folder_provides_the_files_of_the_task(folder: Path) -> None:
    found = resolve("task=mrpc", "data=glue").spec
    assert isinstance(found, FinetuneSpec)
    assert (found.task, found.data.glue, found.init_from) == ("MRPC", folder / "glue", folder / "bert")
    assert (found.recipe, found.slug) == ("glue", "finetune-mrpc")
    (folder / "squad").mkdir()
    for name in ("train-v1.1.json", "train-v2.0.json", "train.txt"):
        (folder / "squad" / name).touch()
    questions = resolve("task=squad2", "data=squad").spec
    assert isinstance(questions, FinetuneSpec)
    assert (questions.data.squad, questions.recipe, questions.max_length) == (folder / "squad", "squad", 384)
    assert questions.slug == "finetune-squad-2-0"
    assert resolve("task=squad", "data=squad", "recipe=glue-stable").spec.recipe == "glue-stable"
    tagged = resolve("task=ner", "data=squad").spec
    assert (tagged.recipe, tagged.model_dump()["data"]["conll"]) == ("entities", folder / "squad")


def test_custom_folder_is_searched_for_tables(folder: Path) -> None:
    found = resolve("data=own", "data.label=stars", "data.text=review").spec
    assert isinstance(found, FinetuneSpec)
    data = found.data
    assert (data.train, data.validation, data.test) == (folder / "own/train.csv", folder / "own/dev.csv", None)
    (folder / "own" / "valid.csv").write_text("")
    with pytest.raises(DataError, match=r"more than one file of .* can be data.validation") as caught:
        resolve("data=own")
    assert caught.value.facts["have"] == "dev.csv, valid.csv"
    (folder / "own" / "train.csv").unlink()
    with pytest.raises(DataError, match=r"no file of .* can be data.train"):
        resolve("data=own")
    with pytest.raises(SpecError, match=r"--data: data.train: no such file or folder: .*nowhere"):
        resolve("data=nowhere")


@pytest.mark.parametrize(("task", "form"), [("NER", "conll"), ("SQuAD-1.1", "json")])
def test_own_files_of_an_official_task_are_found(folder: Path, task: str, form: str) -> None:
    (folder / "mine").mkdir()
    with pytest.raises(DataError, match=r"no file of .*mine can be data.train") as caught:
        resolve(f"task={task}", "data=mine")
    assert caught.value.facts["have"] == "no files"
    for name in ("train", "dev"):
        (folder / "mine" / f"{name}.{form}").touch()
    for given in (["data=mine"], [f"data=mine/train.{form}", f"data.validation=mine/dev.{form}"]):
        data = resolve(f"task={task}", *given).spec.model_dump()["data"]
        assert (data["train"], data["validation"]) == (folder / f"mine/train.{form}", folder / f"mine/dev.{form}")


def test_custom_task_is_a_file_with_relative_paths(folder: Path) -> None:
    (folder / "own" / "reviews.yaml").write_text("train: train.csv\nvalidation: dev.csv\ntext: review\nlabel: stars\n")
    found = resolve("data.label=other", flags={"task": Flag("own/reviews.yaml", "--task")})
    assert isinstance(found.spec, FinetuneSpec)
    assert (found.spec.task, found.spec.data.train) == ("own", folder / "own/train.csv")
    assert (found.spec.data.text, found.spec.data.label) == ("review", "other")  # other sources override it
    assert found.changes["data.text"].origin == "own/reviews.yaml:3"
    (folder / "job.yaml").write_text("task: own/words.yaml\n")
    (folder / "own" / "words.yaml").write_text("task: NER\ntrain: train.csv\nvalidation: dev.csv\nword_column: 2\n")
    spec = resolve(file=Path("job.yaml")).spec
    assert isinstance(spec, FinetuneSpec)
    assert (spec.task, spec.recipe, spec.data.word_column) == ("NER", "entities", 2)


def test_invalid_task_is_reported_with_its_location(folder: Path) -> None:
    (folder / "own" / "reviews.yaml").write_text("train: train.csv\nlable: stars\n")
    with pytest.raises(SpecError) as caught:
        resolve("task=own/reviews.yaml")
    assert caught.value.problems == ["own/reviews.yaml:2: lable: unknown key"]
    with pytest.raises(SpecError, match=r"no such file: .*gone.yaml"):
        resolve("task=gone.yaml")
    with pytest.raises(SpecError, match=r"--set: task: must be CoLA, .*not 'mprc'"):
        resolve("task=mprc", "data=glue")


def test_indivisible_batch_refused_with_nearest_sizes(folder: Path) -> None:
    task = ("task=MRPC", "data=glue")
    two = "compute.processes_per_node=2"
    with pytest.raises(SpecError) as caught:
        resolve(*task, two, "train.global_batch_size=33")
    assert caught.value.facts["nearest"] == "32 or 34"
    with pytest.raises(SpecError) as caught:
        resolve(*task, two, "train.global_batch_size=24", "train.micro_batch_size=5")
    assert caught.value.facts["nearest"] == "20 or 30"
    assert plan(*task, two).accumulation_steps == 1  # 16 rows each, fewer than a micro batch
    assert plan(*task, two, "train.micro_batch_size=4").accumulation_steps == 4


def test_project_defaults_apply_to_their_own_kind(folder: Path) -> None:
    project = folder / "orchestrator.yaml"
    project.write_text("optimizer: {learning_rate: 0.006}\ndata: {text: [own]}\ncompute: {threads_per_process: 1}\n")
    tuned = resolve("task=MRPC", "data.glue=glue", project=project).spec
    assert isinstance(tuned, FinetuneSpec)
    assert (tuned.optimizer.learning_rate, tuned.compute.threads_per_process) == (1e-3, 1)  # of its width
    project.write_text("kind: finetune\noptimizer: {learning_rate: 0.5}\nseeds: [7]\nstore: gone\n")
    tuned = resolve("task=MRPC", "data.glue=glue", project=project).spec
    assert isinstance(tuned, FinetuneSpec)
    assert (tuned.optimizer.learning_rate, tuned.seeds) == (0.5, [7])
    other = resolve_spec("pretrain", environ=NO_GPU, project=project).spec
    assert isinstance(other, PretrainSpec)
    assert other.optimizer.learning_rate == 2e-3
    project.write_text("kind: finetune\nseedz: [7]\n")
    for kind in ("finetune", "pretrain"):
        with pytest.raises(SpecError, match="seedz: unknown key"):
            resolve_spec(kind, environ=NO_GPU, project=project)


def test_setting_without_use_for_the_task_is_reported(folder: Path) -> None:
    found = resolve("task=MRPC", "data.glue=glue", "evaluation.n_best=5", "compute.sku=Standard_DS3_v2")
    assert found.warnings == (
        "evaluation.n_best has no effect: task is MRPC",
        "compute.sku has no effect: it belongs to the azure backend, the run uses local",
    )


def test_plan_counts_rows_and_steps(folder: Path) -> None:
    found = plan("task=MRPC", "data=glue")
    assert found.rows["MRPC"].model_dump() == {"train": 70, "validation": 8, "test": 5}
    assert (found.steps_per_epoch, found.steps, found.counts) == ({"MRPC": 3}, 9, "steps")
    assert (found.data.files, found.parent.name) == (3, "bert")
    text = found.summary()
    assert "rows        train 70, validation 8, test 5" in text
    assert "steps       9 = 3 epochs x 3" in text
    assert max(map(len, text.splitlines())) <= 80
    both = plan("task=MNLI", "data=glue")
    assert both.rows["MNLI"].model_dump() == {"train": 40, "validation": 7, "test": 3}
    assert both.data.files == 6  # with the diagnostics
    several = plan("task=MRPC", "data=glue", "seeds=[1,2,3]")
    assert (several.runs, several.steps, several.counts, several.all_steps) == (3, 3, "runs", 27)
    assert "steps       27 over 3 runs, seeds 1, 2, 3" in several.summary()
    assert several.as_dict()["steps"] == 3


def test_glue_has_a_run_for_each_task_and_seed(folder: Path) -> None:
    for task in ("CoLA", "SST-2", "STS-B", "QQP", "QNLI", "RTE", "WNLI"):
        write_tables(folder / "glue", task, {"train": 31, "dev": 3})
    found = plan("task=glue", "data=glue", "seeds=[1,2]", "per_task.RTE.train.epochs=10", "per_task.WNLI.seeds=[5]")
    assert (found.runs, found.steps, found.counts) == (17, 9, "tasks")
    assert found.rows["CoLA"].train == 32  # has no header
    each = {**dict.fromkeys(("CoLA", "SST-2", "STS-B", "QQP", "QNLI", "RTE", "WNLI"), 1), "MRPC": 3, "MNLI": 2}
    assert found.steps_per_epoch == each
    assert found.all_steps == 2 * 3 * (5 + 3 + 2) + 2 * 10 + 1 * 3
    (folder / "glue" / "RTE" / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"no such file: .*glue/RTE/dev.tsv"):
        plan("task=glue", "data=glue")
    (folder / "glue" / "RTE" / "train.tsv").unlink()
    fewer = plan("task=glue", "data=glue")
    assert (fewer.steps, list(fewer.rows)[:2]) == (8, ["CoLA", "SST-2"])
    assert any("has no training data for RTE: skipped" in warning for warning in fewer.warnings)
    with pytest.raises(DataError, match=r"no task of GLUE is in .*own"):
        plan("task=glue", "data=own")


def test_task_specific_facts_sent_and_stored_unchanged(folder: Path) -> None:
    for task in ("CoLA", "SST-2", "STS-B", "QQP", "QNLI", "RTE", "WNLI"):
        write_tables(folder / "glue", task, {"train": 3, "dev": 3})
    found = plan("task=glue", "data=glue", "per_task.RTE.train.epochs=10")
    read = type(found.job).model_validate_json(found.job.model_dump_json())
    assert read.of_task("RTE").train.epochs == 10
    assert read.of_task("RTE").data.glue == folder / "glue"
    assert found.as_dict()["job"]["per_task"] == {"RTE": {"train": {"epochs": 10}}}
    write_bert(folder / "tuned")
    (folder / "job.yaml").write_text("per_task: {RTE: {init_from: tuned}}\n")
    one = plan("task=glue", "data=glue", file=Path("job.yaml"))
    assert one.job.of_task("RTE").init_from == folder / "tuned"
    write_bert(folder / "tuned", weights=b"others")
    assert plan("task=glue", "data=glue", file=Path("job.yaml")).run_hash != one.run_hash


@pytest.mark.parametrize(
    ("name", "content", "task", "more", "rows"),
    [
        ("a.tsv", b"h\nx\ny", "own", {}, 2),
        ("a.tsv", b"h\nx\ny\n", "own", {}, 2),
        ("a.csv", b'h\n"x\ny"\nz\n', "own", {}, 2),
        ("a.csv", b'h\n"x\ny"\nz\n', "own", {"quoting": False}, 3),
        ("A.CSV", b'h\n"x\ny"\nz\n', "own", {}, 2),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}\n', "own", {}, 2),
        ("a.ndjson", b'{"a": 1}\n{"a": 2}\n', "own", {}, 2),
        ("a.weird", b"h\nx\n", "own", {"format": "tsv"}, 1),
        ("a.weird", b"h\nx\n", "own", {}, None),
        ("a.json", b'{"question": "the \\"question\\" is"}, {"question": ""}', "SQuAD-1.1", {}, 2),
        ("a.txt", b"-DOCSTART- O\n\nEU B-ORG\nrejects O\n\n\nPeter B-PER\n", "NER", {}, 2),
    ],
)
def test_rows_of_text_formats_are_counted(
    name: str, content: bytes, task: str, more: dict[str, Any], rows: int | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    file = TaskFile(task, "train", "train", name, tmp_path / name)
    assert count_rows(file, ExamplesConfig(**more)) == rows


def test_rows_of_parquet_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a", "b", "c"]}), path)
    assert count_rows(TaskFile("own", "train", "train", path.name, path), ExamplesConfig()) == 3
    path.write_bytes(b"no table")
    assert count_rows(TaskFile("own", "train", "train", path.name, path), ExamplesConfig()) is None


def test_estimates_follow_rows_lengths_and_machines(folder: Path) -> None:
    found = plan("task=MRPC", "data=glue").estimates
    assert found.tokens_per_row == pytest.approx(3 + (6 + 70 * 6) / 70 / 4)
    assert found.seconds is not None
    longer = plan("task=MRPC", "data=glue", "train.epochs=6", "compute.price_per_hour=10").estimates
    assert longer.seconds == pytest.approx(2 * found.seconds)
    assert longer.cost == pytest.approx(longer.seconds / 360)
    assert plan("task=MRPC", "data=glue", "data.max_length=8").estimates.tokens_per_row == pytest.approx(
        min(8, 3 + (6 + 70 * 6) / 70 / 4)
    )
    (folder / "glue" / "MRPC" / "dev.tsv").write_text("header\n" + "1\ta\tb\n" * 80)  # ten times as many
    evaluated = plan("task=MRPC", "data=glue").estimates
    assert evaluated.seconds == pytest.approx(found.seconds * (70 + 80 / 3) / (70 + 8 / 3))
    assert found.checkpoints_at_once == 3
    assert plan("task=MRPC", "data=glue", "seeds=[1,2]").estimates.checkpoints_at_once == 5
    weird = folder / "own" / "a.weird"
    weird.write_text("a\n")
    with pytest.raises(DataError, match=r"a\.weird: unknown table format") as refused:
        plan(f"data.train={weird}", f"data.validation={weird}")
    assert refused.value.fix == "rename the file, or set data.format"


def test_time_on_gpu_is_bounded_by_launches(folder: Path) -> None:
    """However few tokens there are, the host launches the kernels of each layer and micro batch."""
    azure = ("task=MRPC", "data=glue", *AZURE, "compute.sku=Standard_NC40ads_H100_v5")
    found = plan(*azure, "train.micro_batch_size=16").estimates.seconds
    layers = 3 * (70 + 8 / 3) / 16 * json.loads((folder / "bert" / "config.json").read_text())["num_hidden_layers"]
    assert found == pytest.approx(LAUNCH_OF_LAYER * layers)
    assert plan(*azure, "train.micro_batch_size=32").estimates.seconds == pytest.approx(found / 2)
    assert plan(*azure, "train.micro_batch_size=16", "train.compile=auto").estimates.seconds == pytest.approx(found)


def test_model_with_too_few_positions_is_refused(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"data.max_length 128 is more than the 64 positions of .*bert"):
        make_plan(resolve("task=MRPC", "data=glue"), home=Path("home"))
    assert make_plan(resolve("task=MRPC", "data=glue", "data.max_length=64"), home=Path("home")).steps == 9


def test_glue_task_beyond_positions_is_refused_with_its_key(folder: Path) -> None:
    for task in GLUE_TASKS:
        if task not in ("MRPC", "MNLI"):
            write_tables(folder / "glue", task, {"train": 3, "dev": 3})
    write_bert(folder / "short", max_position_embeddings=16)
    for override, place in (("data.max_length=128", "64 positions of .*bert"), ("init_from=short", "16 positions of")):
        with pytest.raises(SpecError, match=f"per_task.RTE.data.max_length .* is more than the {place}") as caught:
            plan("task=glue", "data=glue", f"per_task.RTE.{override}")
        assert str(caught.value.fix).startswith("--set per_task.RTE.data.max_length=")


def test_paths_of_a_glue_task_are_resolved_as_shared_ones(folder: Path) -> None:
    write_bert(folder / "tuned")
    sets = ("task=glue", "data=glue", "per_task.mrpc.init_from=base")
    found = resolve(*sets, model_of=lambda name: folder / {"base": "tuned"}[name]).spec
    assert found.job_config().of_task("MRPC").init_from == folder / "tuned"
    with pytest.raises(SpecError) as caught:
        resolve("task=glue", "data=glue", "per_task.RTE.init_from=./no", "per_task.RTE.data.train=no.tsv")
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        f"per_task.RTE.init_from: no such folder: {folder / 'no'}",
        f"per_task.RTE.data.train: no such file or folder: {folder / 'no.tsv'}",
    ]


def test_task_beyond_trained_positions_is_refused_with_choices(folder: Path) -> None:
    config = json.loads((folder / "bert" / "config.json").read_text())
    (folder / "bert" / "config.json").write_text(json.dumps({**config, "trained_positions": 32}))
    with pytest.raises(SpecError, match=r"64 is more than the 32 positions that .*bert was trained on") as caught:
        make_plan(resolve("task=MRPC", "data=glue", "data.max_length=64"), home=Path("home"))
    assert caught.value.fix is not None
    assert "--set data.max_length=32" in caught.value.fix
    assert "--set phase_from=RUN --set data.sequence_length=64" in caught.value.fix
    assert "--set stretch_positions=64" in caught.value.fix
    assert make_plan(resolve("task=MRPC", "data=glue", "data.max_length=32"), home=Path("home")).steps == 9
    before = plan("task=MRPC", "data=glue", "data.max_length=32")
    stretched = plan("task=MRPC", "data=glue", "data.max_length=64", "stretch_positions=64")
    assert "32 trained ones interpolated to cover 64" in " ".join(stretched.summary().split())
    assert stretched.run_hash != before.run_hash
    for wrong, problem in ((128, "has 64 positions, of which 32 are trained"), (16, "of which 32 are trained")):
        with pytest.raises(SpecError, match=problem):
            plan("task=MRPC", "data=glue", "data.max_length=16", f"stretch_positions={wrong}")


def test_default_length_is_at_most_trained_positions(folder: Path) -> None:
    config = json.loads((folder / "bert" / "config.json").read_text())
    (folder / "bert" / "config.json").write_text(json.dumps({**config, "trained_positions": 24}))
    for sets in (("task=MRPC", "data=glue"), ("task=own", "data=own", "data.text=review", "data.label=stars")):
        resolved = resolve_spec(
            "finetune",
            sets=[MODEL, *(text for text in sets if not text.startswith("data="))],
            flags={"data": Flag(sets[1].removeprefix("data="), "--data")},
            environ=NO_GPU,
        )
        assert resolved.spec.job_config().max_length == 24
        assert str(resolved.changes["data.max_length"].origin) == f"positions trained in {folder / 'bert'}"


def test_hash_covers_content_of_files_and_model(folder: Path) -> None:
    def run_hash(*sets: str) -> str:
        return plan("task=MRPC", *sets).run_hash

    before = run_hash("data=glue")
    assert run_hash("data=glue", "watchdog.hang_minutes=5") == before
    (folder / "glue").rename(folder / "moved")
    assert run_hash("data=moved") == before
    different = [before, run_hash("data=moved", "seeds=[1]"), run_hash("data=moved", "train.epochs=2")]
    (folder / "moved" / "MRPC" / "dev.tsv").write_text("header\n0\ta\tb\n")
    different.append(run_hash("data=moved"))
    write_bert(folder / "bert", weights=b"others")
    different.append(run_hash("data=moved"))
    assert len(set(different)) == len(different)


def test_rows_held_back_are_counted_by_their_hash(folder: Path) -> None:
    for name, count in (("train", 40), ("dev", 20)):
        rows = "".join(f"{name} {number},{number % 2}\n" for number in range(count))
        (folder / "own" / f"{name}.csv").write_text(f"review,stars\n{rows}")
    sets = ("data=own", "data.label=stars", "data.text=review", SHORT, "data.test_fraction=0.25")
    from_dev, from_train = plan(*sets), plan(*sets, "data.test_fraction_from=train")
    assert "about 25% of its rows are held back as test" in " ".join(from_dev.summary().split())
    assert "about 25% of the training rows are held back as test" in " ".join(from_train.summary().split())
    for found, divided in ((from_dev, "validation"), (from_train, "train")):
        rows = found.rows["own"]
        assert rows.train + rows.validation + rows.test == 60
        assert 0 < rows.test < 20
        assert rows.test + getattr(rows, divided) == {"validation": 20, "train": 40}[divided]
    # few rows: 20 epochs, not the 3 of the recipe
    assert from_train.steps == 20 * -(-from_train.rows["own"].train // 32)
    config = from_train.job
    assert {name: len(found) for name, found in _sizes(read_data(config)).items()} == {
        "train": from_train.rows["own"].train,
        "dev": 20,
        "held_back": from_train.rows["own"].test,
    }
    assert plan(*sets, "data.test_fraction_from=validation").run_hash == from_dev.run_hash != from_train.run_hash


def test_class_without_training_row_is_named(folder: Path) -> None:
    rows = [f"text {number},{number % 2}\n" for number in range(60)]
    (folder / "own" / "train.csv").write_text("review,stars\n" + "".join(rows))
    sets = ("data.train=own/train.csv", "data.label=stars", "data.text=review", SHORT)
    found = plan(*sets)
    config = found.job
    dev = read_data(config).dev["dev"].texts
    assert not any("is trained" in note for note in [*found.warnings, *read_data(config).notes])
    rare = [row.replace(",0", ",rare").replace(",1", ",rare") if row.split(",")[0] in dev[:2] else row for row in rows]
    (folder / "own" / "train.csv").write_text("review,stars\n" + "".join(rare))
    note = "no row of rare is trained, because its texts are all held back for dev or test"
    assert sum(note in text for text in plan(*sets).warnings) == 1
    assert sum(note in text for text in read_data(config).notes) == 1


def test_defaults_fit_narrow_models_and_few_rows(folder: Path) -> None:
    """A recipe or a value that the user gives is kept."""
    write_bert(folder / "base", hidden_size=768, num_attention_heads=12)
    write_bert(folder / "small", hidden_size=256, num_attention_heads=4)
    (folder / "notes.csv").write_text(
        "text,label\n" + "".join(f"text {number},{number % 2}\n" for number in range(2000))
    )

    def chosen(model: str, *sets: str, **flags: Flag) -> tuple[float, int]:
        job = resolve(f"init_from={model}", "data=notes.csv", SHORT, *sets, flags=flags).spec
        assert isinstance(job, FinetuneSpec)
        return job.optimizer.learning_rate, job.train.epochs

    assert chosen("base") == (2e-5, 5)
    assert chosen("small") == (2e-4, 10)
    assert chosen("bert") == (1e-3, 10)
    assert chosen("small", "train.epochs=2", "optimizer.learning_rate=0.1") == (0.1, 2)
    assert chosen("small", recipe=Flag("glue-stable", "--recipe")) == (2e-5, 20)
    for rows, epochs in {9000: (3, 5), 500: (20, 20), 5000: (3, 10), 20_000: (3, 3)}.items():
        (folder / "notes.csv").write_text("text,label\n" + "text,1\n" * rows)
        assert (chosen("base")[1], chosen("small")[1]) == epochs


def test_default_epochs_count_rows_not_lines(folder: Path) -> None:
    rows = [(f'Note {number} says "fine".\n\nPlan:\n- rest\n', number % 2) for number in range(1000)]
    quoted = "".join('"{}",{}\n'.format(text.replace('"', '""'), label) for text, label in rows)
    for name, text in {
        "notes.csv": f"text,label\n{quoted}",
        "notes.jsonl": "".join(json.dumps({"text": text, "label": str(label)}) + "\n" for text, label in rows),
        "notes.tsv": "text\tlabel\n"
        + "".join(f'"{number} inches\t{label}\n' for number, (_, label) in enumerate(rows)),
    }.items():
        (folder / name).write_text(text.removesuffix("\n"))
        found = resolve(MODEL, f"data={name}", SHORT)
        assert found.spec.train.epochs == 10
        assert str(found.changes["train.epochs"].origin) == "for 1,000 rows"


@pytest.mark.parametrize("name", ["NOTES.CSV", "Notes.Csv"])
def test_table_with_suffix_in_capitals_is_read(folder: Path, name: str) -> None:
    for table in ("notes.csv", name):
        (folder / table).write_text("text,label\n" + "".join(f'"text\n{row}",{row % 2}\n' for row in range(100)))
    lower, upper = plan("data=notes.csv", SHORT), plan(f"data={name}", SHORT)
    assert upper.rows == lower.rows
    assert upper.job.train.epochs == lower.job.train.epochs
    assert _sizes(read_data(upper.job)).keys() == _sizes(read_data(lower.job)).keys()


def _sizes(data: TaskData) -> dict[str, Examples]:
    return {"train": data.train, **data.dev, **data.held_back}


def test_single_table_is_divided_as_the_job_divides_it(folder: Path) -> None:
    table = folder / "notes.csv"
    table.write_text("review,stars\n" + "".join(f"text {number},{number % 3}\n" for number in range(100)))
    columns = ("data.label=stars", "data.text=review", SHORT)
    found = plan("data=notes.csv", *columns, "data.test_fraction=0.5")
    rows = found.rows["own"]
    read = _sizes(read_data(found.job))
    assert (rows.train, rows.validation, rows.test) == tuple(map(len, read.values()))
    assert rows.train + rows.validation + rows.test == 100
    assert min(rows.validation, rows.test) > 3
    texts = [set(examples.texts) for examples in read.values()]
    assert len(set.union(*texts)) == 100
    assert "about 20% of the training rows are the dev set" in " ".join(found.summary().split())
    other = plan("data=notes.csv", *columns, "data.validation_fraction=0.3")
    assert other.rows["own"].validation > rows.validation


AZURE = ("backend=azure", "compute.cluster=cpu", "compute.sku=Standard_D16s_v5", "azure.preflight=false")
WORKSPACE = Workspace(subscription_id="0000-1111", resource_group="group", workspace="place")


def test_azure_gets_tables_and_model_as_data_assets(folder: Path) -> None:
    found = plan("task=MRPC", "data=glue", *AZURE)
    request = build_request(found, found.name, WORKSPACE)
    body = request.job["properties"]
    assert body["command"].endswith(
        "exec python -m train_jobs.finetune --config ${{inputs.job}}/config.json "
        "--set 'data.glue=\"${{inputs.text}}/glue\"' --set 'init_from=${{inputs.start}}' "
        "--output ${{outputs.run}} --device cpu"
    )
    assert set(body["outputs"]) == {"run"}
    assert (body["inputs"]["text"]["mode"], body["inputs"]["start"]["mode"]) == ("ReadOnlyMount", "ReadOnlyMount")
    assert {asset.name for asset in request.assets if asset.kind == "data"} == {
        "orchestrator-tables",
        "orchestrator-start",
    }
    assert sorted(files_of(found, "text")) == [f"glue/MRPC/{split}.tsv" for split in ("dev", "test", "train")]
    sent = json.loads(job_documents(request, found)["config.json"])
    assert ("init_from" in sent, sent["data"]["glue"], sent["data"]["text"]) == (False, None, "text")
    own = plan("data=own", "data.text=review", "data.label=stars", *AZURE)
    words = shlex.split(build_request(own, own.name, WORKSPACE).job["properties"]["command"])
    assert 'data.train="${{inputs.text}}/train/train.csv"' in words
    assert sorted(files_of(own, "text")) == ["train/train.csv", "validation/dev.csv"]


def test_azure_folder_provides_its_files(folder: Path) -> None:
    found = plan("task=MRPC", "azure.data=azureml:glue:3", *AZURE)
    body = build_request(found, found.name, WORKSPACE).job["properties"]
    assert "--set data.glue=${{inputs.text}} " in body["command"].replace("'", "")
    assert body["inputs"]["text"]["uri"].endswith("/data/glue/versions/3")
    assert (found.rows, found.steps) == ({}, None)
    assert "rows        known to the job alone" in found.summary()


def test_azure_refuses_second_model_or_table(folder: Path) -> None:
    for task in ("CoLA", "SST-2", "STS-B", "QQP", "QNLI", "RTE", "WNLI"):
        write_tables(folder / "glue", task, {"train": 3, "dev": 3})
    found = plan("task=glue", "data=glue", f"per_task.RTE.init_from={folder / 'bert'}", *AZURE)
    with pytest.raises(SpecError, match=r"per_task.RTE.init_from"):
        build_request(found, found.name, WORKSPACE)


def test_micro_batch_may_be_left_to_the_job(folder: Path) -> None:
    found = plan("task=MRPC", "data=glue", "train.micro_batch_size=auto", "train.global_batch_size=30")
    assert found.accumulation_steps is None
    assert "30 = micro x accumulation x 1 (world); micro is auto" in " ".join(found.summary().split())
    resolve("task=MRPC", "data=glue", "train.micro_batch_size=auto", "compute.processes_per_node=4")
    with pytest.raises(SpecError) as caught:
        resolve("task=MRPC", "data=glue", "train.micro_batch_size=auto", "compute.processes_per_node=3")
    assert caught.value.facts["nearest"] == "30 or 33"


def test_dataset_folder_hashed_by_content_stays_local(folder: Path) -> None:
    (folder / "reviews").mkdir()
    (folder / "reviews" / "train.csv").write_text("text,label\na,1\n")
    found = plan("data.dataset=reviews")
    assert (found.job.data.dataset, found.rows, found.steps) == (str(folder / "reviews"), {}, None)
    assert (found.data.name, found.data.files) == (str(folder / "reviews"), 1)
    (folder / "reviews" / "train.csv").write_text("text,label\nb,1\n")
    assert plan("data.dataset=reviews").run_hash != found.run_hash
    there = plan("data.dataset=reviews", *AZURE)
    with pytest.raises(SpecError) as caught:
        build_request(there, there.name, WORKSPACE)
    assert caught.value.problems == [f"data.dataset: {folder / 'reviews'} is on this machine"]


def test_question_answering_beyond_trained_positions_is_refused(folder: Path) -> None:
    """Its length of 384 is not lowered: stride and longest question belong to it, whatever the task's spelling."""
    config = json.loads((folder / "bert" / "config.json").read_text())
    longer = {"max_position_embeddings": 512, "trained_positions": 128}
    (folder / "bert" / "config.json").write_text(json.dumps({**config, **longer}))
    (folder / "squad").mkdir()
    (folder / "squad" / "train-v2.0.json").touch()
    for task in ("SQuAD-2.0", "squad2"):
        with pytest.raises(SpecError, match=r"384 is more than the 128 positions that .*bert was trained on"):
            make_plan(resolve(f"task={task}", "data=squad"), home=Path("home"))
