"""A config.json that states another shape than the weights have is refused before anything is allocated."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.conftest import Console
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.config import SpecError, TrainingError, UserError
from train_jobs.inference.model_folder import read_folder
from train_jobs.models.huggingface import require_shapes

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c")
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
MEMORY = 24 << 30  # bytes of address space: torch maps several at its import, a matrix of this width has terabytes
FALSE = {
    "hidden_size": "embeddings.word_embeddings.weight has the shape [8, 8], but config.json states [8, 1000000]",
    "vocab_size": "embeddings.word_embeddings.weight has the shape [8, 8], but config.json states [1000000, 8]",
    "max_position_embeddings": "embeddings.position_embeddings.weight has the shape [512, 8]",
    "type_vocab_size": "embeddings.token_type_embeddings.weight has the shape [2, 8]",
    "intermediate_size": "encoder.layer.0.intermediate.dense.weight has the shape [16, 8]",
    "num_hidden_layers": "encoder.layer has 2 layers, but config.json states num_hidden_layers 1000000",
}


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """Return the folder of a tiny classifier."""
    folder = tmp_path / "bert"
    config = transformers.BertConfig(vocab_size=len(PIECES), **SIZES)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return folder


def falsify(folder: Path, key: str) -> None:
    """Write another size into config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: 1_000_000}))


def test_true_config_is_read(bert: Path) -> None:
    assert read_initial_model(bert).rows == 8
    read_folder(bert).model()


@pytest.mark.parametrize("key", FALSE)
def test_false_config_names_tensor_shapes_and_file(bert: Path, key: str) -> None:
    falsify(bert, key)
    for read in (read_initial_model, lambda folder: read_folder(folder).model()):
        with pytest.raises(SpecError) as refused:
            read(bert)
        assert refused.value.problems[0].startswith(f"{bert}/model.safetensors: {FALSE[key]}")


def test_pickled_weights_are_checked_too(bert: Path) -> None:
    state = transformers.BertForSequenceClassification.from_pretrained(bert).state_dict()
    torch.save(state, bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    sizes = read_initial_model(bert).sizes
    require_shapes(bert, sizes, allow_pickle=True)
    with pytest.raises(SpecError, match="contradict each other"):
        require_shapes(bert, {**sizes, "hidden_size": 1_000_000}, allow_pickle=True)


def test_damaged_weights_are_no_basis_for_shapes(bert: Path) -> None:
    (bert / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(TrainingError, match=r"cannot read .*model\.safetensors"):
        require_shapes(bert, read_initial_model(bert).sizes)


@pytest.mark.parametrize("module", ["finetune", "predict", "tools.serve", "tools.onnx"])
def test_job_allocates_nothing_for_false_config(bert: Path, tmp_path: Path, module: str) -> None:
    falsify(bert, "hidden_size")
    (tmp_path / "rows.csv").write_text("text,label\na b,no\nb a,yes\n")
    own = "task: own\ninit_from: bert\ndata: {train: rows.csv, validation: rows.csv}\n"
    (tmp_path / "own.yaml").write_text(own)
    words = {
        "finetune": "--config own.yaml --output out",
        "predict": "--set model=bert --set input=rows.csv --output out",
        "tools.serve": "--model bert",
        "tools.onnx": "--model bert --output graph.onnx",
    }
    done = subprocess.run(
        [sys.executable, "-m", f"train_jobs.{module}", *words[module].split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 2
    assert "but config.json states [8, 1000000]" in done.stderr
    assert "Traceback" not in done.stderr


def test_plan_refuses_false_config(console: Console, bert: Path) -> None:
    falsify(bert, "hidden_size")
    shutil.move(bert, console.cwd / "model")
    (console.cwd / "rows.csv").write_text("text\na b\n")
    for words in ("predict --model ./model --input rows.csv", "pretrain --from ./model --data rows.csv --column text"):
        found = console("plan", *words.split())
        assert found.code == 2
        assert "but config.json states [8, 1000000]" in found.err


WRONG = {
    "architectures": 5,
    "vocab_size": float("inf"),
    "trained_positions": "x",
    "stretched_positions": [1],
    "null_threshold": "x",
    "hidden_size": None,
}


@pytest.mark.parametrize("key", WRONG)
def test_value_of_other_type_is_refused(bert: Path, key: str) -> None:
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, key: WRONG[key]}))
    with pytest.raises(UserError):
        read_folder(bert).model()


def test_plan_reports_values_of_other_types(console: Console, bert: Path) -> None:
    shutil.move(bert, console.cwd / "model")
    file = console.cwd / "model/config.json"
    config = json.loads(file.read_text())
    (console.cwd / "rows.csv").write_text("text\na b\n")
    for change in ({"vocab_size": float("inf")}, {"trained_positions": -5}, {"stretched_positions": [1]}):
        file.write_text(json.dumps({**config, **change}))
        found = console("plan", "predict", "--model", "./model", "--input", "rows.csv")
        assert found.code == 2
        assert "error[spec]" in found.err
