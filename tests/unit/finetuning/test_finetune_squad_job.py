"""SQuAD jobs on tiny models: answers, questions without an answer, resuming and saving."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from finetune_jobs import (
    SHAPE,
    result_of,
    run,
    same_model,
    settings,
    stop_in,
    validations,
    write_model,
    write_squad,
)
from safetensors.torch import load_file

from tests.conftest import SHARED
from train_jobs.config import FinetuneConfig, ModelConfig
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.runtime.boundary import PREEMPTED
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.models.bert.task_heads import BertForQuestionAnswering
from train_jobs.readers.squad_data import GoldAnswer, Question, Squad, read_squad
from train_jobs.tasks.squad.questions import Questions, scores
from train_jobs.tasks.squad.scoring import score_v2
from train_jobs.tasks.squad.spans import Prediction

REAL = SHARED / "data" / "squad"
VOCABULARY = SHARED / "data" / "bert" / "vocab_uncased.txt"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the files of SQuAD are not in {REAL}")

DATA = {"max_query_length": 4, "doc_stride": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in the format of SQuAD 2.0."""
    folder = tmp_path_factory.mktemp("squad")
    write_squad(folder / "train-v2.0.json", 160, 0, unanswerable=0.3)
    write_squad(folder / "dev-v2.0.json", 60, 1, unanswerable=0.3)
    write_squad(folder / "test.json", 20, 2, unanswerable=0.3)
    return folder


def job(bert: Path, folder: Path) -> dict[str, Any]:
    return settings(
        *(bert, "SQuAD-2.0", {"squad": folder, "test": folder / "test.json", **DATA}),
        train={"epochs": 5},
        optimizer={"learning_rate": 5e-3},
        model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.1},
    )


@pytest.fixture(scope="module")
def done(bert: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outputs of an uninterrupted job."""
    place = tmp_path_factory.mktemp("done")
    assert run(place, job(bert, folder)) == 0
    return place / "out"


def test_job_learns_to_answer_and_abstain(done: Path, folder: Path) -> None:
    metrics = result_of(done.parent)["metrics"]
    questions = read_squad(folder / "dev-v2.0.json").questions
    silent = 100 * np.mean([not question.answers for question in questions])
    assert metrics["best_f1"] > silent + 30
    assert metrics["HasAns_f1"] > 40
    assert (metrics["score"], metrics["collapsed"]) == (metrics["best_f1"], 0.0)
    assert metrics["f1"] <= metrics["best_f1"]


def test_checkpoint_with_best_f1_is_saved(done: Path) -> None:
    found = validations(done, "validation_best_f1")
    best = next(step for step, score in found.items() if score == max(found.values()))
    assert result_of(done.parent)["best_step"] == best
    saved = load_file(done / "model" / "model.safetensors")
    kept = load_file(done / "checkpoints" / f"step-{best:08d}" / "model.safetensors")
    assert all(torch.equal(saved[name], kept[name]) for name in saved)


def test_predictions_official_format_and_tuned_threshold(done: Path, folder: Path) -> None:
    result = result_of(done.parent)
    sets = {"dev": folder / "dev-v2.0.json", "test": folder / "test.json"}
    for name, path in sets.items():
        answers, odds, best = (
            json.loads((done / "predictions" / name / f"{file}.json").read_text())
            for file in ("predictions", "null_odds", "nbest_predictions")
        )
        ids = [question.id for question in read_squad(path).questions]
        assert list(answers) == list(odds) == list(best) == ids
        assert all((answers[key] == "") >= (odds[key] > result["null_threshold"]) for key in ids)
        assert any(answers.values())
        assert not all(answers.values())
    answers = json.loads((done / "predictions" / "dev" / "predictions.json").read_text())
    official = score_v2(read_squad(sets["dev"]).questions, answers)
    assert official["f1"] == pytest.approx(result["metrics"]["best_f1"])
    assert result["metrics"]["best_f1_thresh"] == result["null_threshold"]
    assert json.loads((done / "model" / "config.json").read_text())["null_threshold"] == result["null_threshold"]


def test_transformers_loads_model_and_finds_same_spans(done: Path, folder: Path) -> None:
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(done / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(done / "model")
    best = json.loads((done / "predictions" / "test" / "nbest_predictions.json").read_text())
    short = [q for q in read_squad(folder / "test.json").questions if len(q.context.split()) <= 26][:8]
    assert len(short) >= 4
    for question in short:
        encoded = tokenizer(question.text, question.context, return_tensors="pt")
        with torch.no_grad():
            found = model(**encoded)
        null = next(one for one in best[question.id] if one["text"] == "")
        assert null["start_logit"] == pytest.approx(found.start_logits[0, 0].item(), abs=1e-3)
        assert null["end_logit"] == pytest.approx(found.end_logits[0, 0].item(), abs=1e-3)
        first = next(one for one in best[question.id] if one["text"])
        assert any(abs(first["start_logit"] - logit) < 1e-3 for logit in found.start_logits[0].tolist())


@pytest.mark.slow  # the classification job covers this in fast runs
def test_stopped_run_resumes_to_identical_weights(
    bert: Path, folder: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_in(patched, epoch=3)
        assert run(tmp_path, job(bert, folder)) == PREEMPTED
    assert run(tmp_path, job(bert, folder)) == 0
    assert same_model(tmp_path / "out", done)
    assert validations(tmp_path / "out", "validation_best_f1") == validations(done, "validation_best_f1")


def test_version_1_has_no_threshold(bert: Path, tmp_path: Path) -> None:
    train, dev = (write_squad(tmp_path / f"{name}.json", count, count) for name, count in (("train", 40), ("dev", 10)))
    data = {"train": train, "validation": dev, **DATA}
    document = settings(bert, "squad", data, train={"epochs": 1}, evaluation={"n_best": 3, "max_answer_length": 1})
    assert run(tmp_path, document) == 0
    result = result_of(tmp_path)
    assert result["task"] == "SQuAD-1.1"
    assert {"exact_match", "f1"} <= result["metrics"].keys()
    assert result["metrics"]["score"] == result["metrics"]["f1"]
    assert "null_threshold" not in result
    dev = tmp_path / "out" / "predictions" / "dev"
    assert sorted(path.name for path in dev.iterdir()) == ["nbest_predictions.json", "predictions.json"]
    best = json.loads((dev / "nbest_predictions.json").read_text())
    assert all(1 <= len(found) <= 3 for found in best.values())
    answers = json.loads((dev / "predictions.json").read_text()).values()
    assert max(len(answer.split()) for answer in answers) == 1


def prepared(bert: Path, **values: Any) -> Questions:
    config = FinetuneConfig.model_validate({"task": "SQuAD-2.0", "init_from": bert, **values})
    return Questions.read(config, load_vocabulary(bert / "vocab.txt", lowercase=True))


@pytest.mark.parametrize("size", [2, 3])
def test_token_logits_equal_unpadded_padded_and_sharded(bert: Path, folder: Path, size: int) -> None:
    shape = ModelConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=32
    )
    model = BertForQuestionAnswering(shape, 46).eval()
    initialise(model, 0)
    for parameter in model.parameters():
        parameter.data.mul_(5)
    data = {"squad": folder, "max_length": 32, **DATA}
    found, losses = [], []
    for unpad in (True, False):
        questions = prepared(bert, data=data, train={"unpad": unpad})
        alone = questions.training(model, seed=0, world=World(0, 0, 1, torch.device("cpu")))
        with torch.no_grad():
            found.append(alone._span_logits(alone._dev, 5))
            whole = alone._dev.rows.batch(np.arange(len(alone._dev.rows)))
            losses.append(alone.loss(whole, torch.tensor(alone.counts(whole)))[0].item())
            losses.append(alone.validate(7)["loss"])
            shares = []
            for rank in range(size):
                world = World(rank, rank, size, torch.device("cpu"))
                monkey = pytest.MonkeyPatch()
                monkey.setattr(World, "sum_", lambda self, tensor: tensor)
                shares.append(questions.training(model, seed=0, world=world)._span_logits(alone._dev, 5))
                monkey.undo()
            found.append(sum(shares))
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, atol=1e-5)
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-5)
    assert len(questions.sets["dev"].windows) > len(questions.sets["dev"].squad.questions)


def test_padding_row_adds_nothing(bert: Path, folder: Path) -> None:
    questions = prepared(bert, data={"squad": folder, "max_length": 32, **DATA})
    task = questions.training(questions.model(SHAPE, 46), seed=0, world=World(0, 0, 1, torch.device("cpu")))
    batch = questions.sets["dev"].rows.batch(np.array([3]), counted=False)
    assert task.counts(batch) == [0.0]
    assert task.loss(batch, torch.tensor([1.0]))[0].item() == 0.0
    assert task.counts(questions.sets["dev"].rows.batch(np.array([3, 4]))) == [2.0]
    assert task.counts(task.largest_batch(5)) == [5.0]


def test_windows_start_one_stride_apart(bert: Path, folder: Path) -> None:
    texts = []
    for stride in (12, 5):
        questions = prepared(bert, data={"squad": folder, "max_length": 32, **DATA, "doc_stride": stride}).sets["dev"]
        two = next(window for window, following in pairwise(questions.windows) if window.question == following.question)
        second = questions.windows[questions.windows.index(two) + 1]
        texts.append(int(np.flatnonzero(two.offsets[:, 0] == second.offsets[0, 0])[0]))
    assert texts == [12, 5]


def test_zero_and_best_threshold_are_reported_separately() -> None:
    questions = [
        Question(name, "?", "a b", (GoldAnswer("a", 0),) if name != "none" else ()) for name in ("one", "two", "none")
    ]
    squad = Squad(Path("s.json"), questions, version_2=True)

    def predicted(**odds: float) -> list[Prediction]:
        return [Prediction(name, "a", value, []) for name, value in odds.items()]

    found = scores(squad, predicted(one=-1.0, two=0.5, none=2.0), version_2=True)
    assert (found["exact"], found["best_exact"], found["score"]) == pytest.approx((200 / 3, 100.0, 100.0))
    assert (found["best_f1_thresh"], found["collapsed"]) == (0.5, 0.0)
    useless = scores(squad, predicted(one=3.0, two=2.0, none=1.0), version_2=True)
    assert (useless["best_f1"], useless["collapsed"]) == (pytest.approx(200 / 3), 0.0)
    wrong = [Prediction(one.id, "b", 1.0, []) for one in questions]
    silent = scores(squad, wrong, version_2=True)
    assert (silent["best_f1"], silent["collapsed"]) == (pytest.approx(100 / 3), 1.0)
    assert scores(Squad(Path("s.json"), questions[:2], version_2=False), wrong[:2], version_2=False)["collapsed"] == 1.0


def test_file_of_2_0_is_refused_by_task_1_1(
    bert: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"train": folder / "train-v2.0.json", "validation": folder / "dev-v2.0.json"}
    assert run(tmp_path, settings(bert, "SQuAD-1.1", {**files, **DATA})) == 2
    errors = capsys.readouterr().err
    assert (
        f"error[data]: cannot use {folder / 'train-v2.0.json'} for SQuAD-1.1: it has questions without an answer"
        in errors
    )
    assert "--set task=SQuAD-2.0" in errors


def test_bad_questions_end_job_with_their_positions(
    bert: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((folder / "dev-v2.0.json").read_text())
    paragraphs = document["data"][0]["paragraphs"]
    answered = [one for one in paragraphs if one["qas"][0]["answers"]]
    answered[0]["qas"][0]["answers"][0]["text"] = "Spain"
    answered[1]["qas"][0]["id"] = answered[0]["qas"][0]["id"]
    text = "\ufeff" + json.dumps(document, indent=1).replace("\n", "\r\n")
    (tmp_path / "train.json").write_bytes(text.encode())
    files = {"train": tmp_path / "train.json", "validation": folder / "dev-v2.0.json"}
    assert run(tmp_path, settings(bert, "SQuAD-2.0", {**files, **DATA})) == 2
    errors = capsys.readouterr().err
    name = answered[0]["qas"][0]["id"]
    line = (tmp_path / "train.json").read_text(encoding="utf-8-sig").split("\n").index(f'       "id": "{name}",') + 1
    place = f"{tmp_path / 'train.json'}:{line}: question "
    assert place in errors
    wrong = errors.partition(place)[2].partition(": ")[2]
    assert wrong.startswith("the answer, a text of 5 characters, is not anywhere in its context")
    assert ": duplicate id" in errors
    assert "Spain" not in errors


def test_suspicious_files_and_settings_are_reported(bert: Path, folder: Path, tmp_path: Path) -> None:
    questions = prepared(bert, data={"squad": folder, "max_length": 32, **DATA})
    assert f"{folder / 'train-v2.0.json'}: 160 questions, the official file has 130,319" in questions.notes
    every = write_squad(tmp_path / "every.json", 5, 0)
    data = {"train": every, "validation": folder / "dev-v2.0.json", "max_length": 32, **DATA}
    assert prepared(bert, data=data).notes == [f"{every}: every question has an answer: should task be SQuAD-1.1?"]


def test_folder_without_file_is_reported(
    bert: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, settings(bert, "SQuAD-1.1", {"squad": folder, **DATA})) == 2
    assert f"no such file: {folder / 'train-v1.1.json'}" in capsys.readouterr().err


def is_placed(context: str, qa: dict[str, Any]) -> bool:
    return all(context.startswith(answer["text"], answer["answer_start"]) for answer in qa["answers"])


@needs_real
@pytest.mark.parametrize(("task", "name"), [("SQuAD-1.1", "v1.1/dev-v1.1.json"), ("SQuAD-2.0", "v2.0/dev-v2.0.json")])
def test_real_file_gives_batches_and_predictions(tmp_path: Path, task: str, name: str) -> None:
    pieces = VOCABULARY.read_text(encoding="utf-8").splitlines()
    document = json.loads((REAL / name).read_text())
    first = document["data"][0]["paragraphs"][:2]
    for paragraph in first:
        paragraph["qas"] = [qa for qa in paragraph["qas"] if is_placed(paragraph["context"], qa)][:3]
    path = tmp_path / "real.json"
    path.write_text(json.dumps({**document, "data": [{"title": "x", "paragraphs": first}]}))
    document = {
        "task": task,
        "init_from": str(write_model(tmp_path, pieces, positions=384)),
        "data": {"train": str(path), "validation": str(path)},
        "train": {"epochs": 1, "global_batch_size": 4, "precision": "bf16"},
    }
    assert run(tmp_path, document) == 0
    answers = json.loads((tmp_path / "out" / "predictions" / "dev" / "predictions.json").read_text())
    contexts = {question.id: question.context for question in read_squad(path).questions}
    assert answers.keys() == contexts.keys()
    assert all(answer in contexts[key] for key, answer in answers.items())
