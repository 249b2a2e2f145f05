"""Names of metrics compared with their definitions; other tests check that jobs report them."""

from __future__ import annotations

from pathlib import Path

from train_jobs.config import FinetuneConfig, PretrainConfig
from train_jobs.config.reported import reported_metrics
from train_jobs.config.tasks import TASKS
from train_jobs.readers.squad_data import GoldAnswer, Question
from train_jobs.tasks.entities.conll import entity_scores
from train_jobs.tasks.squad.scoring import score_v1, score_v2


def test_answers_and_entities_have_the_listed_metrics() -> None:
    questions = [Question("q", "who?", "a", (GoldAnswer("a", 0),)), Question("r", "who?", "a", ())]
    assert set(TASKS["SQuAD-1.1"].metrics) == set(score_v1(questions[:1], {"q": "a"}))
    found = score_v2(questions, {"q": "a", "r": ""}, {"q": 0.0, "r": 1.0}, threshold=0.0)
    assert set(TASKS["SQuAD-2.0"].metrics) <= set(found)
    assert {*TASKS["NER"].metrics[:3], "f1_PER", "score"} == set(entity_scores([["B-PER"]], [["B-PER"]]))


def test_run_without_nsp_has_no_nsp_metrics() -> None:
    found = reported_metrics(PretrainConfig.model_validate({"objective": {"next_sentence": False}}))
    assert found is not None
    assert "validation_mlm_loss" in found
    assert not any("nsp" in name for name in found)


def test_metrics_of_own_code_are_unknown() -> None:
    assert reported_metrics(PretrainConfig.model_validate({"objective": {"name": "mine:Objective"}})) is None
    assert reported_metrics(object()) is None


def test_finetuning_metrics_by_task() -> None:
    def names(**more: object) -> tuple[str, ...]:
        found = reported_metrics(FinetuneConfig.model_validate({"init_from": "bert", **more}))
        assert found is not None
        return found

    cola = names(task="CoLA", data={"glue": "glue"})
    assert {"validation_matthews", "validation_score", "train_loss"} <= set(cola)
    assert "validation_f1" not in cola
    assert "validation_dev_matched_score" in names(task="MNLI", data={"glue": "glue"})
    assert "train_loss" not in names(task="CoLA", data={"glue": "glue"}, seeds=[1, 2])
    tables = {"train": Path("a"), "validation": Path("b")}
    assert "validation_accuracy" in names(data=tables)
    assert "validation_pearson" in names(data={**tables, "regression": True})
