"""Model folders: pickles need permission, and signatures find every changed, added or missing file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from safetensors.torch import load_file

from tests.conftest import Console, write_bert, write_corpus
from train_jobs.artifacts.model_trust import require_trusted, sign_folder, verify_signature
from train_jobs.config import DataError, ModelConfig, SpecError, TrustConfig
from train_jobs.config.trust import SIGNATURE
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.models.huggingface import load_weights
from train_jobs.tools import convert, onnx, serve

SHAPE = ModelConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=128
)
LETTERS = "GHIJ"


class Touch:
    """An object whose pickle creates a file when it is loaded without protection."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def write_keys(folder: Path, name: str = "signing") -> tuple[Path, Path]:
    """Write a new pair of keys; return the private and the public one."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path)


def write_pickled(folder: Path) -> BertForPreTraining:
    """Write a folder whose only weights are a pickle, with tied tensors as old exports have them."""
    write_bert(folder, pieces=40, **SHAPE.model_dump(include={"hidden_size", "num_hidden_layers"}))
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | SHAPE.model_dump(exclude={"name", "options"})))
    (folder / "model.safetensors").unlink()
    model = BertForPreTraining(SHAPE, 40)
    initialise(model, 3)
    state = dict(model.state_dict())
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
    torch.save(state, folder / "pytorch_model.bin")
    return model


def test_pickle_needs_permission_to_load(tmp_path: Path) -> None:
    expected = write_pickled(tmp_path / "old")
    model = BertForPreTraining(SHAPE, 40)
    with pytest.raises(DataError, match="it is a pickle") as caught:
        load_weights(model, tmp_path / "old")
    assert caught.value.fix == f"orchestrator model convert {tmp_path / 'old'}"
    assert load_weights(model, tmp_path / "old", allow_pickle=True) == []
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in model.state_dict().items())


def test_pickle_with_program_never_runs(tmp_path: Path) -> None:
    """Permission is no permission to execute: the program of the pickle must not run."""
    write_pickled(tmp_path / "old")
    torch.save({"bert": Touch(tmp_path / "executed")}, tmp_path / "old" / "pytorch_model.bin")
    for load in (
        lambda: load_weights(BertForPreTraining(SHAPE, 40), tmp_path / "old", allow_pickle=True),
        lambda: convert.convert(tmp_path / "old"),
    ):
        with pytest.raises(Exception, match="more than named tensors"):
            load()
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "old" / "model.safetensors").exists()


def test_plans_refuse_pickle_before_start(tmp_path: Path, console: Console) -> None:
    write_pickled(tmp_path / "old")
    corpus = write_corpus(tmp_path / "corpus.txt")
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "w1 [MASK]\tyes\n[MASK]\tno\n" * 4)
    rows = str(tmp_path / "rows.tsv")
    for words in (
        ("pretrain", "--recipe", "continue", "--from", str(tmp_path / "old"), "--data", str(corpus)),
        ("predict", "--model", str(tmp_path / "old"), "--input", rows, "--set", "task=fill-mask"),
        (
            "finetune",
            "--model",
            str(tmp_path / "old"),
            "--set",
            f"data.train={rows}",
            "--set",
            f"data.validation={rows}",
        ),
    ):
        refused = console("plan", *words)
        assert (refused.code, "it is a pickle" in refused.err) == (2, True), refused.err
        assert "model convert" in refused.err
    allowed = console("plan", "predict", "--model", str(tmp_path / "old"), "--input", rows, "--allow-pickle")
    assert allowed.code == 0, allowed.err


def test_tools_refuse_pickle_and_missing_signature(
    tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write_pickled(tmp_path / "old")
    assert onnx.main(["--model", str(tmp_path / "old"), "--output", str(tmp_path / "m.onnx")]) == 2
    assert serve.main(["--model", str(tmp_path / "old")]) == 2
    words = ["--model", str(tmp_path / "old"), "--allow-pickle", "--require-signature", str(keys[1])]
    assert serve.main(words) == 2
    shown = capsys.readouterr().err
    assert (shown.count("it is a pickle"), shown.count("the model is not signed")) == (2, 1)


@pytest.mark.long
def test_convert_writes_equal_safetensors(tmp_path: Path, console: Console) -> None:
    expected = write_pickled(tmp_path / "old")
    done = console("model", "convert", str(tmp_path / "old"))
    assert done.code == 0, done.err
    tensors = load_file(tmp_path / "old" / "model.safetensors")
    assert all(torch.equal(tensors[name], value) for name, value in expected.state_dict().items())
    require_trusted(tmp_path / "old", TrustConfig())
    again = console("model", "convert", str(tmp_path / "old"))
    assert (again.code, "already exists" in again.err) == (1, True)


def tamper(folder: Path, how: str) -> None:
    """Change a signed folder."""
    weights = folder / "model.safetensors"
    if how == "changed byte":
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        weights.write_bytes(bytes(content))
    elif how == "added file":
        (folder / "pytorch_model.bin").write_bytes(b"added")
    elif how == "added git file":
        (folder / ".gitattributes").write_text("added")
    elif how == "missing file":
        (folder / "vocab.txt").unlink()
    elif how == "renamed file":
        (folder / "vocab.txt").rename(folder / "words.txt")
    elif how == "damaged signature":
        (folder / SIGNATURE).write_text((folder / SIGNATURE).read_text()[:200])
    elif how == "changed signature":
        document = json.loads((folder / SIGNATURE).read_text())
        envelope = document["dsseEnvelope"]
        envelope["payload"] = envelope["payload"].translate(str.maketrans(LETTERS, LETTERS[1:] + LETTERS[0]))
        (folder / SIGNATURE).write_text(json.dumps(document))
    elif how == "missing signature":
        (folder / SIGNATURE).unlink()
    elif how == "linked weights":
        weights.rename(folder.parent / "elsewhere")
        weights.symlink_to(folder.parent / "elsewhere")


TAMPERED = (
    *("changed byte", "added file", "added git file", "missing file", "renamed file", "damaged signature"),
    *("changed signature", "missing signature", "linked weights"),
)


@pytest.mark.parametrize("how", TAMPERED)
def test_tampered_folder_is_refused(tmp_path: Path, keys: tuple[Path, Path], how: str) -> None:
    folder = write_bert(tmp_path / "bert", weights=b"weights" * 100)
    private, public = keys
    sign_folder(folder, private)
    require_trusted(folder, TrustConfig(require_signature=public))
    tamper(folder, how)
    with pytest.raises(DataError, match=r"signature of .* is not valid|the model is not signed"):
        require_trusted(folder, TrustConfig(require_signature=public))


def test_other_key_and_signature_of_other_model_are_refused(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    folder, other = write_bert(tmp_path / "bert"), write_bert(tmp_path / "other", weights=b"others")
    private, public = keys
    stranger, _ = write_keys(tmp_path, "stranger")
    sign_folder(folder, stranger)
    with pytest.raises(DataError, match="is not valid") as caught:
        verify_signature(folder, public)
    assert "key" in str(caught.value.facts["why"])
    sign_folder(other, private)
    (folder / SIGNATURE).write_bytes((other / SIGNATURE).read_bytes())
    with pytest.raises(DataError, match="is not valid"):
        verify_signature(folder, public)


def test_moved_folder_stays_valid(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    folder = write_bert(tmp_path / "bert")
    sign_folder(folder, keys[0])
    verify_signature(folder.rename(tmp_path / "renamed"), keys[1])


def test_unusable_keys_are_named(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    folder = write_bert(tmp_path / "bert")
    (tmp_path / "text.pem").write_text("no key")
    for key in (tmp_path / "text.pem", tmp_path / "absent.pem", keys[1]):
        with pytest.raises(SpecError) as caught:
            sign_folder(folder, key)
        assert key.name in str(caught.value)
    sign_folder(folder, keys[0])
    for key in (tmp_path / "text.pem", tmp_path / "absent.pem", keys[0]):
        with pytest.raises(SpecError) as caught:
            verify_signature(folder, key)
        assert key.name in str(caught.value)


@pytest.mark.long
def test_commands_sign_verify_and_require(tmp_path: Path, keys: tuple[Path, Path], console: Console) -> None:
    folder, (private, public) = write_bert(tmp_path / "bert"), keys
    (tmp_path / "rows.tsv").write_text("text\nw1 [MASK]\n")
    plan = ("plan", "predict", "--model", str(folder), "--input", "rows.tsv", "--require-signature", "signing.pub")
    refused = console(*plan)
    assert (refused.code, "the model is not signed" in refused.err) == (2, True), refused.err
    signed = console("model", "sign", str(folder), "--key", str(private))
    assert (signed.code, signed.out.strip()) == (0, str(folder / SIGNATURE)), signed.err
    verified = console("model", "verify", str(folder), "--key", str(public))
    assert (verified.code, verified.out.startswith("valid: ")) == (0, True), verified.err
    planned = console(*plan, "-o", "json")
    assert planned.code == 0, planned.err
    assert planned.json["plan"]["job"]["trust"]["require_signature"] == str(public)
    without = console(*plan[:-2], "-o", "json")
    assert without.json["plan"]["run_hash"] == planned.json["plan"]["run_hash"]
    tamper(folder, "changed byte")
    for words in (plan, ("model", "verify", str(folder), "--key", str(public))):
        refused = console(*words)
        assert (refused.code, "is not valid" in refused.err, "model.safetensors" in refused.err) == (2, True, True)


def test_link_to_a_signed_model_verifies(tmp_path: Path, keys: tuple[Path, Path], console: Console) -> None:
    private, public = keys
    write_pickled(tmp_path / "old")
    sign_folder(tmp_path / "old", private)
    (tmp_path / "link").symlink_to("old")
    done = console("model", "verify", str(tmp_path / "link"), "--key", str(public))
    assert done.code == 0, done.err
    (tmp_path / "old" / "inner").symlink_to("config.json")
    assert console("model", "verify", str(tmp_path / "link"), "--key", str(public)).code != 0
