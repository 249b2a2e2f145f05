"""Training from an initial model: every process has its weights, and missing tensors are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.conftest import MICRO, write_bert, write_corpus
from train_jobs.artifacts.lineage import read_lineage
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.assembly.starting_point import check_start, load_initial_model
from train_jobs.config import ConflictError, PretrainConfig, SpecError, TrainingError
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.pretrain import main, pretrain, read_config

ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


class Peer(World):
    """Another process, whose main process sends the given value."""

    value = 0

    def from_main(self, value: int) -> int:
        return self.value


def bert(folder: Path, kind: type[transformers.PreTrainedModel] = transformers.BertForPreTraining) -> Path:
    """Return a folder with a random model of that kind."""
    write_bert(folder)
    torch.manual_seed(1)
    config = transformers.BertConfig.from_pretrained(folder)
    kind(config).save_pretrained(folder)
    return folder


def initialized(folder: Path, tmp_path: Path, world: World = ALONE) -> tuple[BertForPreTraining, list[str]]:
    """Return the model initialized from a folder, and the tensors that the folder lacks."""
    config = read_config("tiny", [f"init_from={folder}", "data.sequence_length=32"])
    model = BertForPreTraining(config.model, 40)
    initialise(model, 42)
    return model, load_initial_model(model, config, world, tmp_path / "hashes.json")


def test_weights_equal_those_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bert(tmp_path / "bert")
    model, absent = initialized(folder, tmp_path)
    theirs = transformers.BertForPreTraining.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())
    assert absent == []
    out = capsys.readouterr().out
    assert f"weights    {folder}, SHA-256 " in out
    assert "warning" not in out


def test_training_starts_from_initial_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate near zero they do not change, whatever the seed."""
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # keep pytest's SIGTERM handler
    sections = {section: MICRO[section] for section in ("data", "validation", "checkpoint")}
    sections["data"] = {**sections["data"], "text": [str(write_corpus(tmp_path / "corpus.txt"))]}
    train = {**MICRO["train"], "steps": 2, "precision": "fp32"}
    folders = {"output": tmp_path / "first", "cache": tmp_path / "stores", "device": "cpu"}
    pretrain(PretrainConfig(model=MICRO["model"], train=train, **sections), **folders)
    model = tmp_path / "first" / "model"
    (tmp_path / "job.json").write_text(
        json.dumps(
            {
                **sections,
                "init_from": str(model),
                "train": {**train, "seed": 7},
                "optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0},
            }
        )
    )
    pretrain(read_config(str(tmp_path / "job.json"), []), **{**folders, "output": tmp_path / "second"})
    before, after = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("first", "second"))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-20)
    lineage = read_lineage(tmp_path / "second" / "lineage.json")
    assert lineage is not None
    assert [link.name for link in lineage.links] == ["corpus.txt", "first", "second"]  # one store for one text


def test_missing_heads_are_initialized_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, absent = initialized(bert(tmp_path / "bert", transformers.BertForMaskedLM), tmp_path)
    drawn = BertForPreTraining(model.config, 40)
    initialise(drawn, 42)
    assert {name.split(".")[1] for name in absent} == {"pooler", "seq_relationship"}
    assert all(torch.equal(model.state_dict()[name], drawn.state_dict()[name]) for name in absent)
    assert (
        "warning: the initial model lacks bert.pooler, cls.seq_relationship: initialised at random from train.seed"
        in (capsys.readouterr().out)
    )


def test_without_initial_model_nothing_happens(tmp_path: Path) -> None:
    model = BertForPreTraining(PretrainConfig().model.model_copy(update={"num_hidden_layers": 1}), 40)
    before = model.cls.predictions.bias.clone()
    assert load_initial_model(model, PretrainConfig(), ALONE, tmp_path / "hashes.json") == []
    assert torch.equal(model.cls.predictions.bias, before)


def test_process_with_different_weights_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peer = Peer(rank=3, local_rank=3, size=4, device=torch.device("cpu"))
    with pytest.raises(ConflictError, match="rank 3 reads another initial model than rank 0"):
        initialized(bert(tmp_path / "bert"), tmp_path, peer)
    assert capsys.readouterr().out == ""


def test_only_the_main_process_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bert(tmp_path / "bert", transformers.BertForMaskedLM)
    peer = Peer(rank=3, local_rank=3, size=4, device=torch.device("cpu"))
    object.__setattr__(peer, "value", int(str(initial_weights(folder))[:15], 16))
    _, absent = initialized(folder, tmp_path, peer)
    assert absent
    assert capsys.readouterr().out == ""


def test_deleted_weights_are_named(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert")
    config = read_config("tiny", [f"init_from={folder}", "data.sequence_length=32"])
    (folder / "model.safetensors").unlink()
    with pytest.raises(TrainingError, match=r"no such file: .*model\.safetensors"):
        load_initial_model(BertForPreTraining(config.model, 40), config, ALONE, tmp_path / "hashes.json")


def test_new_run_needs_folder_resumed_run_does_not(tmp_path: Path) -> None:
    config = PretrainConfig(init_from=tmp_path / "gone")
    with pytest.raises(SpecError, match=f"no such folder: {tmp_path / 'gone'}"):
        check_start(config, resumes=False)
    check_start(config, resumes=True)
    check_start(PretrainConfig(init_from=tmp_path), resumes=False)
    check_start(PretrainConfig(), resumes=False)


def test_plain_job_takes_shape_and_vocabulary_from_folder(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert")
    config = read_config("tiny", [f"init_from={folder}", "data.sequence_length=32"])
    assert (config.model.hidden_size, config.data.vocabulary) == (32, folder / "vocab.txt")
    (tmp_path / "job.yaml").write_text(f"init_from: {folder}\nmodel: {{hidden_size: 64}}\n")
    with pytest.raises(SpecError) as caught:
        read_config(str(tmp_path / "job.yaml"), [])
    assert caught.value.problems == [f"{tmp_path / 'job.yaml'}:2: model.hidden_size: 64, but the initial model has 32"]
    assert read_config(str(tmp_path / "job.yaml"), ["data.sequence_length=32"], resumes=True).model.hidden_size == 64


def test_plain_job_reports_a_missing_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # keep pytest's SIGTERM handler
    words = ["--config", "tiny", "--set", f"init_from={tmp_path / 'gone'}", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert f"error[spec]: no such folder: {tmp_path / 'gone'}" in capsys.readouterr().err
    assert not (tmp_path / "out" / "token-stores").exists()
