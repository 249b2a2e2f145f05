"""The configuration of fine-tuning: task names, files, and overrides for single GLUE tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train_jobs import finetune
from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.config import FinetuneConfig, SpecError

FILES = {"train": "train.json", "validation": "dev.json"}


def config(task: str, data: dict[str, Any], **more: Any) -> FinetuneConfig:
    tree = {"task": task, "init_from": "model", "data": data, **more}
    return build(FinetuneConfig, merge([ConfigLayer("job.yaml", tree)]))


def problem(task: str, data: dict[str, Any], **more: Any) -> str:
    with pytest.raises(SpecError) as caught:
        config(task, data, **more)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        *(("sst2", "SST-2"), ("sts_b", "STS-B"), ("GLUE", "glue"), ("Own", "own"), ("ner", "NER")),
        *(("squad", "SQuAD-1.1"), ("SQuAD-v1.1", "SQuAD-1.1"), ("squad1", "SQuAD-1.1"), ("squad_1.1", "SQuAD-1.1")),
        *(("squad2", "SQuAD-2.0"), ("SQUAD_v2", "SQuAD-2.0"), ("squad-v2.0", "SQuAD-2.0"), ("squad2.0", "SQuAD-2.0")),
        *(("entities", "NER"), ("CoNLL-2003", "NER"), ("conll", "NER")),
    ],
)
def test_task_name_ignores_case_and_punctuation(spelled: str, name: str) -> None:
    data = {"glue": "g"} if name == "glue" else FILES
    assert config(spelled, data).task == name


def test_unknown_task_lists_known_ones() -> None:
    message = problem("MRCP", {"glue": "g"})
    assert 'SQuAD-1.1, SQuAD-2.0, NER or own (did you mean "MRPC"?)' in message
    with pytest.raises(SpecError):
        finetune.read_config("there-is-none.yaml", [])


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("MRPC", {"train": "t"}, "task MRPC requires data.glue, a folder, or data.train and data.validation"),
        ("SQuAD-2.0", {"glue": "g"}, "requires data.squad, a folder, or data.train and data.validation"),
        ("NER", {"validation": "d"}, "task NER requires data.conll, a folder, or data.train and data.validation"),
        ("own", {"validation": "d"}, "a task of your own requires data.train, a table, or data.dataset"),
        ("own", {"dataset": "d", "train": "t"}, "data.train and data.dataset are both given"),
        ("glue", FILES, "task glue requires data.glue, the folder of its files"),
        ("glue", {"glue": "g", "test": "t"}, "data.test is a single table, but task glue has several tasks"),
        ("NER", {"conll": "c", "word_column": 2, "tag_column": 2}, "word_column and tag_column are both 2"),
    ],
)
def test_data_is_folder_or_both_files(task: str, data: dict[str, Any], message: str) -> None:
    assert message in problem(task, data)


def test_max_length_default_depends_on_task() -> None:
    assert config("SQuAD-1.1", {"squad": "s"}).max_length == config("SQuAD-2.0", {"squad": "s"}).max_length == 384
    assert config("NER", {"conll": "c"}).max_length == 128
    assert config("SQuAD-1.1", {"squad": "s", "max_length": 100}).max_length == 100


def test_micro_batch_is_given_or_derived_from_length() -> None:
    def sizes(size: int | str, task: str = "SQuAD-1.1", processes: int = 1) -> list[int]:
        train = {"global_batch_size": 48, "micro_batch_size": size}
        return config(task, FILES, train=train).micro_batches(processes, on_cpu=True)

    assert (sizes(16), sizes(16, processes=4), sizes(64)) == ([16], [12], [48])
    assert sizes("auto") == [6, 3, 2, 1]
    assert sizes("auto", task="own") == [24, 12, 6, 3, 2, 1]
    assert sizes("auto", task="own", processes=5) == [10, 5, 3, 2, 1]
    assert "must be a whole number above 0" in problem("own", FILES, train={"micro_batch_size": "all"})


def test_per_task_values_override_defaults() -> None:
    rte = {"train": {"epochs": 10}, "seeds": [7], "init_from": "mnli", "data": {"max_length": 64}}
    whole = config(
        *("glue", {"glue": "g", "lowercase": True}),
        train={"global_batch_size": 16},
        seeds=[1, 2],
        per_task={"rte": rte},
    )
    found = whole.of_task("RTE")
    assert (found.task, found.train.epochs, found.train.global_batch_size) == ("RTE", 10, 16)
    assert (found.seeds, found.init_from, found.max_length) == ([7], Path("mnli"), 64)
    assert (found.data.glue, found.data.lowercase, found.per_task) == (Path("g"), True, {})
    other = whole.of_task("CoLA")
    assert (other.task, other.train.epochs, other.seeds, other.init_from) == ("CoLA", 3, [1, 2], Path("model"))


@pytest.mark.parametrize(
    ("per_task", "message"),
    [
        ({"RTE": {"train": {"epoch": 5}}}, 'per_task.RTE.train.epoch: unknown key (did you mean "epochs"?)'),
        ({"RTE": {"sed": [1]}}, 'per_task.RTE.sed: unknown key (did you mean "seeds"?)'),
        ({"RTF": {}}, 'did you mean "RTE"?'),
        ({"NER": {}}, "must be CoLA, SST-2"),
        ({"RTE": {"seeds": [3, 3]}}, "per_task.RTE: seeds contains a duplicate"),
        ({"RTE": {"train": {"epochs": 0}}}, "per_task.RTE.train.epochs"),
    ],
)
def test_invalid_per_task_values_are_named(per_task: dict[str, Any], message: str) -> None:
    assert message in problem("glue", {"glue": "g"}, per_task=per_task)


def test_per_task_values_require_glue_job() -> None:
    assert "per_task is only for task glue, and task is RTE" in problem("RTE", {"glue": "g"}, per_task={"RTE": {}})


def test_unused_settings_of_task_are_listed() -> None:
    assert config("MRPC", {"glue": "g", "doc_stride": 128}).ignored() == []
    found = config(
        *("MRPC", {"glue": "g", "doc_stride": 64, "text": "a", "conll": "c"}),
        evaluation={"n_best": 5, "every": 3},
        train={"class_weights": "balanced"},
    ).ignored()
    assert found == ["data.conll", "data.text", "data.doc_stride", "evaluation.n_best"]
    squad = config("SQuAD-2.0", {"squad": "s", "doc_stride": 64}, train={"class_weights": "balanced"})
    assert squad.ignored() == ["train.class_weights"]
