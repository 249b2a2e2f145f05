"""Interpolated positions: the embeddings, the refusals, and a job that measures their loss and records them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.conftest import MICRO, write_corpus
from train_jobs.artifacts.lineage import PretrainFacts, read_lineage
from train_jobs.artifacts.start_model import InitialModel, read_initial_model
from train_jobs.config import FinetuneConfig, PredictConfig, PretrainConfig, SpecError
from train_jobs.finetune import finetune
from train_jobs.inference.model_folder import read_folder
from train_jobs.models.bert.positions import stretch_positions
from train_jobs.predict import predict
from train_jobs.pretrain import pretrain, read_config

TABLE = "bert.embeddings.position_embeddings.weight"


def test_interpolation_is_linear_and_keeps_both_ends() -> None:
    table = torch.arange(8.0).unsqueeze(1) * torch.tensor([1.0, -2.0])
    table[4:] = 99.0
    stretch_positions(table, trained=4, stretched=7)
    assert table[:, 0].tolist() == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3, 99])
    assert table[:7, 1].tolist() == pytest.approx([-2 * value for value in table[:7, 0].tolist()])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that trained 32 of 64 positions."""
    folder = tmp_path_factory.mktemp("stretch")
    text = [str(write_corpus(folder / "corpus.txt"))]
    job = {section: MICRO[section] for section in ("model", "data", "validation")}
    job |= {"data": {**MICRO["data"], "text": text}, "train": {**MICRO["train"], "steps": 4, "precision": "fp32"}}
    pretrain(PretrainConfig.model_validate(job), output=folder / "first", cache=folder / "stores", device="cpu")
    return folder


def continued(trained: Path, *sets: str) -> PretrainConfig:
    path = trained / "job.json"
    data = {"text": [str(trained / "corpus.txt")], "validation_fraction": 0.2, "sequence_length": 48}
    train = {**MICRO["train"], "steps": 2, "precision": "fp32"}
    document = {"init_from": str(trained / "first" / "model"), "data": data, "train": train}
    path.write_text(json.dumps({**document, "validation": MICRO["validation"]}))
    return read_config(str(path), list(sets))


def test_continued_pretraining_measures_and_records_the_stretch(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = continued(trained, "stretch_positions=64", "optimizer.learning_rate=1.0e-9")
    pretrain(config, output=tmp_path / "out", cache=trained / "stores", device="cpu")
    out = capsys.readouterr().out
    assert "positions  32 trained ones interpolated to cover 64: held-out loss " in out
    lineage = read_lineage(tmp_path / "out" / "model" / "lineage.json")
    assert lineage is not None
    stretch = PretrainFacts.model_validate(lineage.head.facts).stretch
    assert stretch is not None
    assert (stretch.trained, stretch.stretched, stretch.length) == (32, 64, 48)
    first = json.loads((trained / "first" / "result.json").read_text())
    assert stretch.trained_loss == pytest.approx(first["validation_mlm_loss"], rel=1e-4)
    assert f"{stretch.stretched_loss:.4f} at 48 after" in (tmp_path / "out" / "model" / "README.md").read_text()

    before = load_file(trained / "first" / "model" / "model.safetensors")[TABLE]
    wanted = before.clone()
    stretch_positions(wanted, 32, 64)
    after = load_file(tmp_path / "out" / "model" / "model.safetensors")[TABLE]
    assert torch.allclose(after, wanted, atol=1e-6)
    assert not torch.allclose(after, before, atol=1e-3)
    model = read_initial_model(tmp_path / "out" / "model")
    assert (model.trained_positions, model.stretched_positions, model.usable_positions) == (48, 64, 64)
    assert AutoTokenizer.from_pretrained(model.folder).model_max_length == 64


def test_invalid_stretches_are_refused(trained: Path) -> None:
    for sets, problem in (
        (["stretch_positions=40"], "data.sequence_length 48 is more than stretch_positions 40"),
        (["stretch_positions=64", "init_from=null", "model.max_position_embeddings=64"], "requires init_from"),
    ):
        with pytest.raises(SpecError) as caught:
            continued(trained, *sets)
        assert problem in str(caught.value)
    model: InitialModel = read_initial_model(trained / "first" / "model")
    for stretched, problem in ((32, "of which 32 are trained"), (65, "of which 32 are trained")):
        with pytest.raises(SpecError, match=problem):
            model.require_stretchable(stretched)


def test_stretched_finetuning_predicts_longer_texts(trained: Path, tmp_path: Path) -> None:
    rows = "".join(f"{'ba zo ' * 30}\t{number % 2}\n" for number in range(8))
    (tmp_path / "rows.tsv").write_text(f"text\tlabel\n{rows}")
    document = {
        "init_from": str(trained / "first" / "model"),
        "data": {"train": str(tmp_path / "rows.tsv"), "validation": str(tmp_path / "rows.tsv"), "max_length": 48},
        "train": {"epochs": 1, "precision": "fp32"},
    }
    with pytest.raises(SpecError, match="48 is more than the 32 positions"):
        finetune(FinetuneConfig.model_validate(document), output=tmp_path / "refused", device="cpu")
    made = FinetuneConfig.model_validate({**document, "stretch_positions": 48})
    finetune(made, output=tmp_path / "tuned", device="cpu")
    model = tmp_path / "tuned" / "model"
    config = json.loads((model / "config.json").read_text())
    assert (config["trained_positions"], config["stretched_positions"]) == (32, 48)
    assert "interpolated to cover 48" in (model / "README.md").read_text()
    assert read_folder(model).usable_positions == 48

    asked = {"model": str(model), "input": [str(tmp_path / "rows.tsv")]}
    too_long = PredictConfig.model_validate({**asked, "data": {"max_length": 64}})
    with pytest.raises(SpecError, match="64 is more than the 48 positions"):
        predict(too_long, output=tmp_path / "predictions", device="cpu")
