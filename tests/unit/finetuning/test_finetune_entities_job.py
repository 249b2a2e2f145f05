"""Named-entity jobs on tiny models: training, resuming and the saved model with its tags."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from finetune_jobs import SHAPE, result_of, run, same_model, settings, stop_in, validations, write_conll
from safetensors.torch import load_file

from train_jobs.config.finetune import FinetuneConfig
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.runtime.boundary import PREEMPTED
from train_jobs.engine.runtime.distributed import World
from train_jobs.models.bert.pretraining_heads import initialise
from train_jobs.tasks.entities.conll import entity_scores, read_conll
from train_jobs.tasks.entities.tagging import Words
from train_jobs.tasks.finetuning import balanced_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in the format of CoNLL-2003."""
    folder = tmp_path_factory.mktemp("conll")
    for seed, (name, count) in enumerate({"train": 120, "valid": 40, "test": 20}.items()):
        write_conll(folder / f"{name}.txt", count, seed)
    return folder


def job(bert: Path, folder: Path, **sections: Any) -> dict[str, Any]:
    return settings(bert, "NER", {"conll": folder}, train={"epochs": 7}, **sections)


@pytest.fixture(scope="module")
def done(bert: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outputs of an uninterrupted job."""
    place = tmp_path_factory.mktemp("done")
    assert run(place, job(bert, folder)) == 0
    return place / "out"


def test_job_learns_entities(done: Path) -> None:
    result = result_of(done.parent)
    metrics = result["metrics"]
    assert metrics["f1"] > 0.8
    assert metrics["score"] == metrics["f1"] == max(validations(done).values())
    assert {"precision", "recall", "f1_PER", "f1_LOC", "test_f1"} <= metrics.keys()
    assert metrics["collapsed"] == 0.0


def test_conll_predictions_are_next_to_gold_tags(done: Path, folder: Path) -> None:
    metrics = result_of(done.parent)["metrics"]
    for name, prefix in (("valid", ""), ("test", "test_")):
        path = done / "predictions" / f"{'dev' if name == 'valid' else name}.txt"
        gold, predicted = read_conll(folder / f"{name}.txt"), read_conll(path)
        assert predicted.words == gold.words
        assert read_conll(path, tag_column=2).tags == gold.tags
        assert entity_scores(gold.tags, predicted.tags)["f1"] == pytest.approx(metrics[f"{prefix}f1"])


def test_transformers_loads_tags_and_predicts_equally(done: Path, folder: Path) -> None:
    model = transformers.AutoModelForTokenClassification.from_pretrained(done / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(done / "model")
    assert model.config.id2label == {0: "O", 1: "B-LOC", 2: "B-PER", 3: "I-PER"}
    found = read_conll(done / "predictions" / "test.txt")
    short = [number for number, words in enumerate(found.words) if len(words) <= 8]
    assert len(short) >= 3
    for number in short:
        encoded = tokenizer(found.words[number], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            tags = model(**encoded).logits[0].argmax(-1).tolist()
        firsts = [encoded.word_ids().index(word) for word in range(len(found.words[number]))]
        assert [model.config.id2label[tags[first]] for first in firsts] == found.tags[number]


@pytest.mark.slow  # the classification job covers this in fast runs
def test_stopped_run_resumes_to_identical_weights(
    bert: Path, folder: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_in(patched, epoch=2)
        assert run(tmp_path, job(bert, folder)) == PREEMPTED
    assert run(tmp_path, job(bert, folder)) == 0
    assert same_model(tmp_path / "out", done)
    assert validations(tmp_path / "out") == validations(done)


@pytest.mark.slow
def test_two_processes_train_like_one(bert: Path, folder: Path, tmp_path: Path) -> None:
    """Shares are uneven, and the last batch has one row for two processes."""
    rows = len(prepared(bert, folder).sets["train"].rows)
    size = next(size for size in range(11, 40) if rows % size == 1)
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    document = job(bert, folder, model=dropout)
    document["train"] |= {"epochs": 1, "global_batch_size": size, "micro_batch_size": 4}
    document["data"]["max_length"] = 16
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert run(tmp_path / "one", document) == 0
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(document))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(
            "-m",
            "train_jobs.finetune",
            "--config",
            str(tmp_path / "two.yaml"),
            "--output",
            str(tmp_path / "two" / "out"),
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(tmp_path / name / "out" / "model" / "model.safetensors") for name in ("one", "two"))
    for key in one:
        torch.testing.assert_close(one[key], two[key], atol=2e-5, rtol=1e-4)
    figures = [result_of(tmp_path / name)["metrics"] for name in ("one", "two")]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)
    texts = [(tmp_path / name / "out" / "predictions" / "test.txt").read_text() for name in ("one", "two")]
    assert texts[0] == texts[1]


def prepared(bert: Path, folder: Path, **train: Any) -> Words:
    data = {"conll": folder, "max_length": 16}
    config = FinetuneConfig.model_validate({"task": "NER", "init_from": bert, "data": data, "train": train})
    return Words.read(config, load_vocabulary(bert / "vocab.txt", lowercase=True))


def test_each_word_is_labelled_once_at_first_piece(bert: Path, folder: Path) -> None:
    train = prepared(bert, folder).sets["train"]
    words = [word for sentence in train.sentences.words for word in sentence]
    tags = [tag for sentence in train.sentences.tags for tag in sentence]
    assert len(train.firsts) == len(words)
    assert len(train.rows) > len(train.sentences), "long sentences become several sequences"
    assert (train.rows.targets >= 0).sum() == len(words)
    names = ("O", "B-LOC", "B-PER", "I-PER")
    assert [names[target] for target in train.rows.targets[train.firsts]] == tags
    ids = np.concatenate(train.rows.ids)
    pieces = load_vocabulary(bert / "vocab.txt", lowercase=True)
    firsts = [pieces.encode(word, add_special_tokens=False).ids[0] for word in words]
    assert ids[train.firsts].tolist() == firsts
    rows = np.array([3, 0])
    batch = train.rows.batch(rows)
    for place, row in enumerate(rows):
        begin, length = train.rows.begins[row], train.rows.lengths[row]
        assert batch.targets[place, :length].tolist() == train.rows.targets[begin : begin + length].tolist()
        assert (batch.targets[place, length:] == -100).all()
    assert (train.rows.batch(rows, counted=False).targets == -100).all()
    lengths = train.rows.lengths
    uneven = train.rows.batch(np.array([lengths.argmax(), lengths.argmin()])).slice(1, 2)
    assert uneven.targets.shape == uneven.input_ids.shape == (1, lengths.min())


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_loss_is_mean_over_words(bert: Path, folder: Path, weights: str) -> None:
    losses = []
    for unpad in (True, False):
        words = prepared(bert, folder, unpad=unpad, class_weights=weights)
        model = words.model(SHAPE, 46)
        initialise(model, 0)
        model.eval()
        task = words.training(model, seed=0, world=World(0, 0, 1, torch.device("cpu")))
        batch = words.sets["train"].rows.batch(np.arange(9))
        counted = batch.targets[batch.targets >= 0]
        weight = balanced_weights(words.sets["train"].rows.targets[words.sets["train"].firsts], 4)
        expected = weight[counted].sum() if weights == "balanced" else len(counted)
        assert task.counts(batch)[0] == pytest.approx(expected, rel=1e-5)
        with torch.no_grad():
            losses.append(task.loss(batch, torch.tensor(task.counts(batch)))[0].item())
            logits = torch.from_numpy(task._token_logits(words.sets["train"].rows, 4, 5)[: batch.tokens])
        targets = torch.from_numpy(words.sets["train"].rows.targets[: batch.tokens])
        by_hand = torch.from_numpy(weight) if weights == "balanced" else None
        losses.append(torch.nn.functional.cross_entropy(logits, targets, weight=by_hand).item())
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-4)


def test_dev_set_scored_by_word_loss_and_each_type(bert: Path, tmp_path: Path) -> None:
    types = ["ORG", "LOC", "PER", "MISC", "DATE", "WORK"]  # more types than the model has words
    (tmp_path / "train.txt").write_text("".join(f"w1 B-{type_}\n" for type_ in types) + "w4 O\n")
    (tmp_path / "valid.txt").write_text("w1 B-LOC\nw2-w5 O\n\nw7 O\n")
    words = prepared(bert, tmp_path)
    model = words.model(SHAPE, 46).eval()
    initialise(model, 0)
    task = words.training(model, seed=0, world=World(0, 0, 1, torch.device("cpu")))
    with torch.no_grad():
        found = task.validate(2)
        rows = words.sets["dev"].rows
        logits, targets = task._token_logits(rows, 7, 1), torch.from_numpy(rows.targets)
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(torch.from_numpy(logits), targets).item())
    assert {f"f1_{type_}" for type_ in types} <= found.keys()


def test_test_set_without_tags_is_accepted(bert: Path, folder: Path, tmp_path: Path) -> None:
    test = write_conll(tmp_path / "words.txt", 5, 7, columns="{word}")
    test.write_text(test.read_text().removeprefix("-DOCSTART- X O\n\n"))
    files = {"train": folder / "train.txt", "validation": folder / "valid.txt", "test": test}
    assert run(tmp_path, settings(bert, "entities", files, train={"epochs": 1})) == 0
    lines = (tmp_path / "out" / "predictions" / "test.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in lines] == test.read_text().splitlines()
    assert {len(line.split(" ")) for line in lines if line} == {2}
    assert "test_f1" not in result_of(tmp_path)["metrics"]


def test_other_columns_are_configurable(bert: Path, tmp_path: Path) -> None:
    files = {
        name: write_conll(tmp_path / f"{name}.txt", 20, 3, columns="1 {word} {tag} O")
        for name in ("train", "validation")
    }
    data = {**files, "word_column": 2, "tag_column": 3}
    assert run(tmp_path, settings(bert, "NER", data, train={"epochs": 1})) == 0
    lines = (tmp_path / "out" / "predictions" / "dev.txt").read_text().split("\n")
    expected = [" ".join(line.split(" ")[1:3]) for line in files["validation"].read_text().split("\n")[2:]]
    assert [" ".join(line.split(" ")[:2]) for line in lines] == expected


BAD = {
    "w12 O": "2 columns, need 3",
    "w12 X PER": "invalid tag: a text of 3 characters, need O, B-TYPE",
    "w12 X B-ORG": "the tag, a text of 5 characters, is not in the training data",
}


@pytest.mark.parametrize("written", BAD)
def test_bad_lines_end_job_with_their_positions(
    bert: Path, folder: Path, tmp_path: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (folder / "valid.txt").read_text().split("\n")
    number = max(place for place, line in enumerate(lines) if line == "w12 X O")
    lines[number] = written
    bad = tmp_path / "bad.txt"
    bad.write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    assert run(tmp_path, settings(bert, "NER", {"train": folder / "train.txt", "validation": bad})) == 2
    assert f"{bad}:{number + 1}: {BAD[written]}" in capsys.readouterr().err


def test_column_without_entities_is_reported(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_conll(tmp_path / "t.txt", 5, 0, columns="{word} {tag} O")
    assert run(tmp_path, settings(bert, "NER", {"train": path, "validation": path})) == 2
    assert f"cannot train: {path} contains no entity" in capsys.readouterr().err


def test_folder_without_files_is_reported(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, settings(bert, "NER", {"conll": tmp_path})) == 2
    assert "a folder with train.txt or eng.train" in capsys.readouterr().err
