"""Lineage and card of a fine-tuned model: its base model, its files, its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from lineage_runs import TAGS, attempt

from tests.conftest import write_bert
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.layers import build, merge, read_assignments, read_overlays
from train_jobs.artifacts.lineage import FinetuneFacts, Lineage, TablesFacts, read_lineage
from train_jobs.artifacts.start_model import initial_lineage
from train_jobs.config import ConflictError, FinetuneConfig
from train_jobs.records import finetuning_lineage
from train_jobs.records.pretraining_lineage import TrainingStart

METRICS = {"loss": 0.4, "f1": 0.9, "accuracy": 0.85, "score": 0.875, "collapsed": 0.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bert(tmp_path / "secret" / "bert")
    for split, rows in (("train", 5), ("dev", 2)):
        path = tmp_path / "secret" / "glue" / "MRPC" / f"{split}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("header\n" + "1\ta\tb\n" * rows)
    return tmp_path


def config_of(folder: Path, **sections: Any) -> FinetuneConfig:
    given = {"task": "MRPC", "init_from": folder / "secret/bert", "data": {"glue": folder / "secret/glue"}, **sections}
    return FinetuneConfig.model_validate(given)


def begin(folder: Path, *, step: int = 0, tags: dict[str, str] = TAGS, **sections: Any) -> Lineage:
    output = folder / "out"
    (output / "model").mkdir(parents=True, exist_ok=True)
    (output / "model" / "model.safetensors").write_bytes(b"tuned")
    start = TrainingStart(attempt(step=step), torch.nn.Linear(3, 2), ["classifier.weight"], output, tags)
    return finetuning_lineage.begin(config_of(folder, **sections), start, rows="7" * 64, labels=["no", "yes"], seed=3)


def complete(folder: Path, **more: Any) -> Lineage:
    model = folder / "out" / "model"
    finetuning_lineage.describe(begin(folder, **more), model, steps=9, best_step=6, metrics=METRICS)
    found = read_lineage(model / "lineage.json")
    assert found is not None
    return found


def test_tuned_model_has_base_model_and_files(folder: Path) -> None:
    found = complete(folder)
    base, tables, head = found.links
    assert [link.kind for link in found.links] == ["external", "tables", "finetune"]
    assert head.inputs == (tables.hash, base.hash)
    assert (base.name, head.name) == ("bert", "alpha-1234abcd")
    data = TablesFacts.model_validate(tables.facts)
    train = folder / "secret/glue/MRPC/train.tsv"
    assert [source.name for source in data.sources] == ["MRPC/train.tsv", "MRPC/dev.tsv"]
    assert (data.sources[0].sha256, data.sources[0].total_bytes) == (file_sha256(train), train.stat().st_size)
    facts = FinetuneFacts.model_validate(head.facts)
    assert (facts.task, facts.labels, facts.seed, facts.best_step, facts.steps) == ("MRPC", ["no", "yes"], 3, 6, 9)
    assert facts.metrics == METRICS
    assert facts.weights == file_sha256(folder / "out/model/model.safetensors")
    assert facts.run == "local://alpha-1234abcd"
    assert str(folder) not in found.text()


def test_model_tuned_twice_has_the_complete_chain(folder: Path) -> None:
    complete(folder)
    model = folder / "out" / "model"
    write_bert(model, weights=b"tuned")
    assert initial_lineage(model).head.kind == "finetune"
    again = begin(folder, init_from=model)
    assert [link.kind for link in again.links] == ["external", "tables", "finetune", "finetune"]
    write_bert(model, weights=b"other")
    with pytest.raises(ConflictError, match=r"are not those of its lineage.json"):
        initial_lineage(model)


def test_resumed_training_keeps_its_start(folder: Path) -> None:
    begin(folder)
    write_bert(folder / "secret" / "bert", weights=b"other")
    going_on = begin(folder, step=4)
    facts = FinetuneFacts.model_validate(going_on.head.facts)
    assert [one.step for one in facts.attempts] == [0, 4]
    (folder / "out" / "lineage.json").write_text("{")
    anew = FinetuneFacts.model_validate(begin(folder, step=5).head.facts)
    assert [one.step for one in anew.attempts] == [5]


def test_best_of_several_seeds_lists_all_scores(folder: Path) -> None:
    complete(folder)
    figure = {"mean": 0.8, "sd": 0.05, "median": 0.81, "max": 0.9}
    found = {"metrics": dict.fromkeys(METRICS, figure), "seeds": [{}, {}, {}], "collapsed": 1}
    finetuning_lineage.describe_best(folder / "out", found)
    lineage = read_lineage(folder / "out" / "lineage.json")
    assert lineage == read_lineage(folder / "out/model/lineage.json")
    assert lineage is not None
    facts = FinetuneFacts.model_validate(lineage.head.facts)
    assert (facts.seeds, facts.collapsed, facts.over_seeds) == (3, 1, found["metrics"])
    card = (folder / "out/model/README.md").read_text()
    assert "| f1 | 0.9000 | 0.8000 +- 0.0500 over 3 seeds |" in card
    assert "| Runs that learned nothing | 1 of 3 |  |" in card
    assert "| Seed | 3, the best of 3 |" in card


def test_card_metadata_is_valid_for_the_hub(folder: Path) -> None:
    complete(folder)
    text = (folder / "out/model/README.md").read_text()
    data = ModelCard(text).data
    assert (data.library_name, data.pipeline_tag, data.base_model) == ("transformers", "text-classification", "bert")
    assert (data.tags, data.datasets) == (["bert", "fine-tuned"], ["nyu-mll/glue"])
    results = {result.metric_type: result for result in data.eval_results}
    assert {kind: result.metric_value for kind, result in results.items()} == {"f1": 0.9, "accuracy": 0.85}
    assert (results["f1"].dataset_name, results["f1"].dataset_split) == ("GLUE MRPC", "validation")
    for expected in (
        "bert, fine-tuned on GLUE MRPC",
        "| f1 | 0.9000 |",
        "no, yes",
        "`classifier.weight`",
        "MRPC/train.tsv",
    ):
        assert expected in text, expected
    assert "collapsed" not in text.split("## Limits")[0]


@pytest.mark.parametrize(
    ("task", "kind"),
    [("SQuAD-1.1", "question-answering"), ("NER", "token-classification"), ("own", "text-classification")],
)
def test_each_kind_of_task_has_its_pipeline(folder: Path, task: str, kind: str) -> None:
    train = folder / "secret" / "reviews.tsv"
    train.write_text("x\n")
    complete(folder, task=task, data={"train": train, "validation": train})
    text = (folder / "out/model/README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["pipeline_tag"] == kind
    assert f'pipeline("{kind}"' in text
    name = {"own": "reviews.tsv, reviews.tsv"}.get(task, task)
    assert header["model-index"][0]["results"][0]["dataset"]["name"] == name


def test_hub_dataset_is_named(folder: Path) -> None:
    found = complete(folder, task="own", data={"dataset": "owner/reviews:en"})
    assert [link.name for link in found.links] == ["bert", "reviews:en", "alpha-1234abcd"]
    assert "bert, fine-tuned on reviews:en (" in (folder / "out/model/README.md").read_text()


def test_command_reproduces_the_configuration(folder: Path) -> None:
    facts = FinetuneFacts.model_validate(begin(folder, train={"epochs": 20}, seeds=[1, 2, 3, 4, 6]).head.facts)
    words = facts.commands["torchrun"]
    recipe = words[words.index("--config") + 1]
    assert recipe == "train_jobs/recipes/finetune/glue-stable.yaml"
    sets = [words[number + 1] for number, word in enumerate(words) if word == "--set"]
    assert f"task={facts.task}" in sets
    path = Path(finetuning_lineage.__file__).parent.parent.parent / recipe
    made = build(FinetuneConfig, merge([*read_overlays(path), read_assignments(sets, "--set")]))
    assert made.model_dump(mode="json") == facts.config
    assert facts.commands["orchestrator"][:7] == [
        *("orchestrator", "submit", "finetune", "--recipe", "glue-stable", "--task", "MRPC")
    ]
