"""Exports load in transformers offline, without warnings and bit-exactly; its folders load here."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from train_jobs.config import ModelConfig, StorageError, TrainingError
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.models.huggingface import TokenizerFiles, export, load_weights

SHAPE = ModelConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=20
)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cafe", "caf\u00e9", "Cafe", "##s", ".", "\u4e2d", "un"]
ROWS = 16  # 13 pieces, rounded up to a multiple of 8
HEADS = ("bert.pooler.", "cls.")


def make_model(seed: int, shape: ModelConfig = SHAPE, rows: int = ROWS) -> BertForPreTraining:
    model = BertForPreTraining(shape, rows)
    initialise(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
    return model.eval()


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "pieces.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return path


def write(model: BertForPreTraining, folder: Path, vocabulary: Path, *, lowercase: bool = True) -> Path:
    export(
        model, folder, config=model.config, vocab_size=model.vocab_size, tokenizer=TokenizerFiles(vocabulary, lowercase)
    )
    return folder


def edit_weights(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = {**load_file(folder / "model.safetensors"), **change}
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / "model.safetensors")


def test_export_loads_in_transformers(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers_logging.set_verbosity_warning()
    model = make_model(0)
    folder = write(model, tmp_path / "export", vocabulary)
    loaded, report = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert {name: list(problems) for name, problems in report.items() if problems} == {}
    state = loaded.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    assert loaded.dtype == torch.float32
    ids = torch.randint(0, ROWS, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine, _ = model(ids, torch.zeros_like(ids))
        theirs = loaded.eval()(ids).prediction_logits
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    assert "warn" not in capsys.readouterr().err.lower()


def test_exported_config_sets_all_values_explicitly(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    loaded = transformers.AutoConfig.from_pretrained(folder)
    for key, value in SHAPE.model_dump(exclude={"name", "options", "pad_vocab_to_multiple_of"}).items():
        assert getattr(loaded, key) == value, key
    assert (loaded.vocab_size, loaded.pad_token_id, loaded.hidden_act) == (ROWS, 0, "gelu")
    assert loaded.architectures == ["BertForPreTraining"]
    document = json.loads((folder / "config.json").read_text())
    assert document.keys() >= {
        "hidden_act",
        "pad_token_id",
        "model_type",
        "tie_word_embeddings",
    }  # set explicitly, not by default
    assert "pad_vocab_to_multiple_of" not in document


@pytest.mark.parametrize("task", ["AutoModelForSequenceClassification", "AutoModelForMaskedLM", "AutoModel"])
def test_export_can_be_fine_tuned(tmp_path: Path, vocabulary: Path, task: str) -> None:
    model = make_model(0)
    folder = write(model, tmp_path / "export", vocabulary)
    loaded = getattr(transformers, task).from_pretrained(folder)
    bert = getattr(loaded, "bert", loaded)
    assert torch.equal(bert.encoder.layer[1].output.dense.weight, model.bert.encoder.layer[1].output.dense.weight)


@pytest.mark.parametrize(
    ("lowercase", "pieces"),
    [
        (True, ["the", "cafe", "##s", "cafe", "\u4e2d", ".", "[MASK]", "[UNK]"]),
        (False, ["[UNK]", "Cafe", "##s", "caf\u00e9", "\u4e2d", ".", "[MASK]", "[UNK]"]),
    ],
)
def test_export_includes_tokenizer(tmp_path: Path, vocabulary: Path, lowercase: bool, pieces: list[str]) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary, lowercase=lowercase)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer).__name__.startswith("BertTokenizer")
    assert tokenizer.model_max_length == 20
    assert tokenizer.get_vocab() == {piece: index for index, piece in enumerate(PIECES)}
    assert (folder / "vocab.txt").read_bytes() == vocabulary.read_bytes()
    assert tokenizer.tokenize("The Cafes caf\u00e9 \u4e2d. [MASK] xyz") == pieces
    pair = tokenizer("the", "un .")
    assert pair["input_ids"] == [2, 5, 3, 12, 10, 3]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1, 1]


def test_export_is_fp32_without_tied_decoder(tmp_path: Path, vocabulary: Path) -> None:
    model = make_model(0).to(torch.bfloat16)
    tensors = load_file(write(model, tmp_path / "export", vocabulary) / "model.safetensors")
    assert set(tensors) == set(model.state_dict())
    assert {value.dtype for value in tensors.values()} == {torch.float32}


class Tied(BertForPreTraining):
    """Own model with the usual way to tie weights, and with numbers that fp32 cannot represent."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.decoder = torch.nn.Linear(config.hidden_size, vocab_size)
        self.decoder.weight = self.bert.embeddings.word_embeddings.weight
        self.register_buffer("seen", torch.tensor(2**24 + 1))


def test_own_model_with_ties_and_integers_is_exported(tmp_path: Path, vocabulary: Path) -> None:
    model = Tied(SHAPE, ROWS)
    folder = write(model, tmp_path / "export", vocabulary)
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["decoder.weight"], tensors["bert.embeddings.word_embeddings.weight"])
    assert (tensors["seen"].dtype, tensors["seen"].item()) == (torch.int64, 2**24 + 1)
    loaded = Tied(SHAPE, ROWS)
    assert load_weights(loaded, folder) == []
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


def test_export_replaces_older_one_without_leftovers(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "out" / "export", vocabulary)
    (folder / "old.txt").write_text("of the older export")
    (tmp_path / "out" / ".export.partial").mkdir()  # a killed export
    write(make_model(1), folder, vocabulary)
    assert [path.name for path in folder.parent.iterdir()] == ["export"]
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    fresh = make_model(2)
    assert load_weights(fresh, folder) == []
    assert torch.equal(fresh.cls.predictions.bias, make_model(1).cls.predictions.bias)


def test_failed_export_keeps_older_one(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "out" / "export", vocabulary)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileNotFoundError):
        write(make_model(1), folder, tmp_path / "no vocabulary")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["export"]


def test_unwritable_export_folder_is_storage_error(tmp_path: Path, vocabulary: Path) -> None:
    parent = tmp_path / "locked"
    parent.mkdir()
    parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        try:
            (parent / "probe").mkdir()
        except PermissionError:
            with pytest.raises(StorageError, match="the export"):
                write(make_model(0), parent / "export", vocabulary)
        else:
            pytest.skip("this user may write anywhere")
    finally:
        parent.chmod(stat.S_IRWXU)


def test_weights_round_trip_is_bit_exact(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    model = make_model(1)
    assert load_weights(model, folder) == []
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in make_model(0).state_dict().items())


@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"])
def test_folders_with_other_heads_load_available_weights(tmp_path: Path, architecture: str) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=ROWS, **SHAPE.model_dump(exclude={"pad_vocab_to_multiple_of"}))
    theirs = getattr(transformers, architecture)(config)
    theirs.save_pretrained(tmp_path)
    model = make_model(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    absent = load_weights(model, tmp_path)
    present = {
        "BertModel": ("bert.pooler.",),
        "BertForMaskedLM": ("cls.predictions.",),
        "BertForSequenceClassification": ("bert.pooler.",),
    }[architecture]
    assert set(absent) == {name for name in before if name.startswith(HEADS) and not name.startswith(present)}
    theirs_state = {re.sub("^(?!bert|cls)", "bert.", name): value for name, value in theirs.state_dict().items()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] if name in absent else theirs_state[name]), name


def test_legacy_tensorflow_names_load(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    old = {}
    for name, value in load_file(folder / "model.safetensors").items():
        renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[renamed] = value
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, folder / "model.safetensors")
    model = make_model(1)
    assert load_weights(model, folder) == []
    assert torch.equal(model.bert.embeddings.LayerNorm.weight, make_model(0).bert.embeddings.LayerNorm.weight)


def test_vocabulary_without_padding_rows_is_loaded(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0, rows=13), tmp_path / "export", vocabulary)
    model, untouched = make_model(1), make_model(1)
    load_weights(model, folder)
    table = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(table[:13], make_model(0, rows=13).bert.embeddings.word_embeddings.weight)
    assert torch.equal(table[13:], untouched.bert.embeddings.word_embeddings.weight[13:])
    assert torch.equal(model.cls.predictions.bias[:13], make_model(0, rows=13).cls.predictions.bias)
    assert (model.cls.predictions.bias[13:] == -40).all()


def test_padding_rows_unchanged_without_head(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0, rows=13), tmp_path / "export", vocabulary)
    edit_weights(folder, {name: None for name in make_model(0).state_dict() if name.startswith("cls.predictions.")})
    model, untouched = make_model(1), make_model(1)
    load_weights(model, folder)
    assert torch.equal(model.cls.predictions.bias, untouched.cls.predictions.bias)


def test_import_and_export_keep_all_logits(tmp_path: Path, vocabulary: Path) -> None:
    """The source has 13 rows, the model 16; the export has 16, 13 pieces and 3 rows without probability."""
    first = write(make_model(0, rows=13), tmp_path / "first", vocabulary)
    model = make_model(1)
    load_weights(model, first)
    second = write(model, tmp_path / "second", vocabulary)
    ids = torch.randint(0, 13, (3, 20), generator=torch.Generator().manual_seed(0))
    before, after = (
        transformers.BertForPreTraining.from_pretrained(folder).eval()(
            ids, labels=ids, next_sentence_label=torch.tensor([0, 1, 1])
        )
        for folder in (first, second)
    )
    assert after.prediction_logits.shape[-1] == 16
    assert torch.allclose(after.prediction_logits[..., :13], before.prediction_logits, rtol=0, atol=1e-6)
    assert after.prediction_logits.softmax(-1)[..., 13:].max() < 1e-12
    assert after.loss.item() == pytest.approx(before.loss.item(), abs=1e-6)
    again = make_model(2)
    assert load_weights(again, second) == []
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize("architecture", ["BertModel", "BertForPreTraining"])
def test_names_with_and_without_prefix_load(tmp_path: Path, vocabulary: Path, architecture: str) -> None:
    ours = write(make_model(0), tmp_path / "ours", vocabulary)
    getattr(transformers, architecture).from_pretrained(ours).save_pretrained(tmp_path / "theirs")
    names = load_file(tmp_path / "theirs" / "model.safetensors").keys()
    assert any(name.startswith("bert.") for name in names) == (architecture == "BertForPreTraining")
    model = make_model(1)
    absent = set(load_weights(model, tmp_path / "theirs"))
    assert {name.partition(".")[0] for name in absent} == ({"cls"} if architecture == "BertModel" else set())
    for name, value in make_model(0).state_dict().items():
        assert name in absent or torch.equal(model.state_dict()[name], value), name


def refused(model: BertForPreTraining, folder: Path) -> TrainingError:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(TrainingError) as caught:
        load_weights(model, folder, allow_pickle=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "loaded half of it"
    return caught.value


def test_other_shape_is_refused_naming_both(tmp_path: Path, vocabulary: Path) -> None:
    wider = SHAPE.model_copy(update={"intermediate_size": 48})
    problem = refused(make_model(0, wider), write(make_model(0), tmp_path / "export", vocabulary))
    assert "intermediate" in problem.facts["where"] or "output.dense" in problem.facts["where"]
    assert {tuple(problem.facts["need"]), tuple(problem.facts["have"])} in (
        {(48, 16), (32, 16)},
        {(16, 48), (16, 32)},
        {(48,), (32,)},
    )


@pytest.mark.parametrize("rows", [8, 24])
def test_other_vocabulary_size_is_refused(tmp_path: Path, vocabulary: Path, rows: int) -> None:
    problem = refused(make_model(0, rows=rows), write(make_model(0), tmp_path / "export", vocabulary))
    assert "[16" in str(problem.facts["have"])


@pytest.mark.parametrize(("here", "there", "word"), [(1, 2, "surplus"), (3, 2, "missing")])
def test_other_number_of_layers_is_refused(tmp_path: Path, vocabulary: Path, here: int, there: int, word: str) -> None:
    folder = write(
        make_model(0, SHAPE.model_copy(update={"num_hidden_layers": there})), tmp_path / "export", vocabulary
    )
    problem = refused(make_model(0, SHAPE.model_copy(update={"num_hidden_layers": here})), folder)
    assert f"bert.encoder.layer.{min(here, there)}." in problem.facts[word]
    assert "and 11 more" in problem.facts[word]


def test_other_number_of_heads_refused(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0, SHAPE.model_copy(update={"num_attention_heads": 4})), tmp_path / "export", vocabulary)
    problem = refused(make_model(0), folder)
    assert problem.facts == {"need": 2, "have": 4}


def test_untied_decoder_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    folder, table = write(make_model(0), tmp_path / "export", vocabulary), "bert.embeddings.word_embeddings.weight"
    tied = load_file(folder / "model.safetensors")[table]
    edit_weights(folder, {"cls.predictions.decoder.weight": tied.clone()})
    load_weights(make_model(1), folder)
    edit_weights(folder, {"cls.predictions.decoder.weight": tied + 1})
    assert "decoder is not tied" in str(refused(make_model(1), folder))
    edit_weights(folder, {"cls.predictions.decoder.weight": None, "cls.predictions.decoder.bias": torch.ones(ROWS)})
    assert "decoder.bias" in str(refused(make_model(1), folder))


def test_incomplete_head_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    edit_weights(folder, {"cls.predictions.bias": None})
    assert refused(make_model(0), folder).facts["missing"] == "cls.predictions.bias"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_or_invalid_files_are_named(tmp_path: Path, vocabulary: Path, name: str) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    (folder / name).write_text("{ broken")
    assert f"cannot read {folder / name}" in str(refused(make_model(0), folder))
    (folder / name).unlink()
    assert f"no such file: {folder / name}" in str(refused(make_model(0), folder))


def test_export_is_complete_before_it_appears(tmp_path: Path, vocabulary: Path) -> None:
    folder, seen = tmp_path / "out" / "export", []

    def describe(partial: Path) -> None:
        seen.append((folder.exists(), {path.name for path in partial.iterdir()}))
        (partial / "README.md").write_text("words")

    settings = {"config": SHAPE, "vocab_size": ROWS, "tokenizer": TokenizerFiles(vocabulary, True)}
    export(make_model(0), folder, **settings, describe=describe)
    ((appeared, names),) = seen
    assert not appeared
    assert {"model.safetensors", "config.json", "vocab.txt", "tokenizer.json"} <= names
    assert (folder / "README.md").read_text() == "words"


def as_pickle(folder: Path) -> Path:
    """Convert the weights of a folder to a pickle and return the folder."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def test_pickle_weights_load_without_safetensors(tmp_path: Path, vocabulary: Path) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    as_pickle(folder)
    model = make_model(1)
    assert load_weights(model, folder, allow_pickle=True) == []
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in make_model(0).state_dict().items())
    save_file(make_model(2).state_dict(), folder / "model.safetensors")
    load_weights(model, folder)
    assert torch.equal(model.cls.predictions.bias, make_model(2).cls.predictions.bias)


class Intruder:
    """An object whose unpickling executes code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("content", [b"{ broken", b"", {"a": 3}, [torch.ones(1)], "intruder"])
def test_pickle_with_code_is_refused_not_executed(tmp_path: Path, vocabulary: Path, content: object) -> None:
    folder = write(make_model(0), tmp_path / "export", vocabulary)
    path = as_pickle(folder)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(Intruder(tmp_path / "pwned") if content == "intruder" else content, path)
    problem = refused(make_model(1), folder)
    assert str(problem).startswith(f"error[training]: cannot read {path}")
    assert "contains more than named tensors" in problem.facts["why"]
    assert not (tmp_path / "pwned").exists()
