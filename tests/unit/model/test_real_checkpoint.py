"""A real checkpoint is read, trained and written like in transformers: bit-exact weights, differences below 1e-5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.config import ModelConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise, pretraining_sums
from train_jobs.models.huggingface import TokenizerFiles, export, load_weights

PIECES = 30_522
ROWS = {"original rows": 2, "six rows of padding": 8}  # the vocabulary is padded to a multiple of this
PAIRS = [
    (
        "The ship's log ended on the fourth of March, half a page after the ink had changed colour.",
        "Nobody aboard could say who had written the last lines, or why they were in Portuguese.",
    ),
    ("Prices rose by 2.5% in 2019.", "Frogs breathe through their skin."),
    ("Why?", "Because the na\u00efve caf\u00e9 owner refused."),
]
LABELS = (0, 1, 0)

Tensors = dict[str, torch.Tensor]


@dataclass
class Text:
    """A batch in the format of the job and in that of transformers."""

    ours: Tensors
    theirs: Tensors

    @property
    def tokens(self) -> torch.Tensor:
        """bool [B, S], False at padding."""
        return self.theirs["attention_mask"].bool()


@pytest.fixture(scope="module")
def text(minilm: Path) -> Text:
    """Return the pairs with every fifth token masked, padded to the longest."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    theirs: Tensors = dict(tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt"))
    ids, lengths = theirs["input_ids"], theirs["attention_mask"].sum(1)
    positions = torch.zeros(len(ids), 16, dtype=torch.int64)
    labels, everywhere = torch.full_like(positions, -100), torch.full_like(ids, -100)
    for number, length in enumerate(lengths.tolist()):
        chosen = torch.arange(2, length - 1, 5)
        positions[number, : len(chosen)] = chosen
        labels[number, : len(chosen)] = everywhere[number, chosen] = ids[number, chosen]
    ids[everywhere >= 0] = tokenizer.mask_token_id
    ours = {
        "input_ids": ids,
        "token_type_ids": theirs["token_type_ids"],
        "lengths": lengths,
        "masked_positions": positions,
        "masked_labels": labels,
        "next_sentence_labels": torch.tensor(LABELS),
    }
    return Text(ours, {**theirs, "labels": everywhere})


def blank(folder: Path, multiple: int) -> BertForPreTraining:
    """Return a model of the checkpoint's shape with other weights."""
    config = ModelConfig(**read_initial_model(folder).shape, pad_vocab_to_multiple_of=multiple)
    model = BertForPreTraining(config, config.padded_vocab_size(PIECES))
    initialise(model, 1)
    return model.eval()


def differing(found: Tensors, expected: Tensors) -> list[str]:
    """Return the names of the tensors whose first rows are not exactly the expected ones."""
    return [name for name, tensor in expected.items() if not torch.equal(found[name][: len(tensor)], tensor)]


@pytest.fixture(scope="module")
def stored(minilm: Path) -> Tensors:
    """Return the weights of the file by our names."""
    tensors = load_file(minilm / "model.safetensors")
    del tensors["embeddings.position_ids"]
    assert len(tensors) == 103
    return {f"bert.{name}": tensor for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def with_heads(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint as transformers saves it with heads."""
    model = transformers.BertForPreTraining.from_pretrained(minilm)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.cls.named_parameters():
            parameter.normal_(mean=float(name.endswith("LayerNorm.weight")), std=0.05, generator=generator)
    folder = tmp_path_factory.mktemp("with-heads")
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("multiple", ROWS.values(), ids=ROWS)
def test_all_tensors_are_read(minilm: Path, stored: Tensors, multiple: int) -> None:
    model = blank(minilm, multiple)
    absent = load_weights(model, minilm)
    state = model.state_dict()
    assert differing(state, stored) == []
    assert set(absent) == state.keys() - stored.keys() == {name for name in state if name.startswith("cls.")}
    assert len(state["bert.embeddings.word_embeddings.weight"]) == {2: 30_522, 8: 30_528}[multiple]


@pytest.mark.parametrize("padded", [True, False])
def test_encoder_and_pooler_match_transformers(minilm: Path, text: Text, padded: bool) -> None:
    model, theirs = blank(minilm, 8), transformers.BertModel.from_pretrained(minilm).eval()
    load_weights(model, minilm)
    rows = slice(None) if padded else slice(0, 1)  # the first row is the longest
    arguments = {name: value[rows] for name, value in text.theirs.items() if name != "labels"}
    mask = text.tokens[rows]
    with torch.no_grad():
        expected = theirs(**arguments)
        hidden = model.bert(arguments["input_ids"], arguments["token_type_ids"], mask if padded else None)
        pooled = model.bert.pooler(hidden)
    assert mask.all() == (not padded)
    assert expected.last_hidden_state.std() > 0.1
    assert (hidden - expected.last_hidden_state)[mask].abs().max() < 1e-5
    assert (pooled - expected.pooler_output).abs().max() < 1e-5


@pytest.mark.parametrize("multiple", ROWS.values(), ids=ROWS)
def test_loss_and_gradients_match_transformers(minilm: Path, with_heads: Path, text: Text, multiple: int) -> None:
    theirs = transformers.BertForPreTraining.from_pretrained(with_heads).eval()
    model = blank(minilm, multiple)
    assert load_weights(model, with_heads) == []
    expected = theirs(**text.theirs, next_sentence_label=torch.tensor(LABELS)).loss
    expected.backward()
    sums = pretraining_sums(model, text.ours, next_sentence=True, padded=True)
    loss = sums.mlm_loss_sum / sums.mlm_count + sums.nsp_loss_sum / sums.nsp_count
    loss.backward()
    assert sums.mlm_count == (text.theirs["labels"] >= 0).sum() > 10
    assert abs(loss.item() - expected.item()) < 1e-5
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        here, there = parameter.grad, gradients[name]
        assert here is not None
        assert there is not None
        assert (here[: len(there)] - there).abs().max() < 1e-5, name
        assert here[len(there) :].abs().sum() < 1e-12, name  # padding rows are never predicted and get no gradient
        assert there.abs().max() > 1e-4 or name.endswith("key.bias"), name


@pytest.mark.parametrize("multiple", ROWS.values(), ids=ROWS)
def test_export_and_import_are_bit_exact(minilm: Path, stored: Tensors, tmp_path: Path, multiple: int) -> None:
    model = blank(minilm, multiple)
    load_weights(model, minilm)
    ours = tmp_path / "ours"
    settings = {
        "config": model.config,
        "vocab_size": model.vocab_size,
        "tokenizer": TokenizerFiles(minilm / "vocab.txt", True),
    }
    export(model, ours, **settings)
    for architecture in ("BertModel", "BertForPreTraining"):  # names without and with the prefix
        loaded, report = getattr(transformers, architecture).from_pretrained(ours, output_loading_info=True)
        assert not report["missing_keys"]
        prefix = "bert." if architecture == "BertModel" else ""
        assert differing({f"{prefix}{name}": value for name, value in loaded.state_dict().items()}, stored) == []
        loaded.save_pretrained(tmp_path / architecture)
        again = blank(minilm, multiple)
        absent = load_weights(again, tmp_path / architecture)
        assert differing(again.state_dict(), stored) == []
        kept = {name: value for name, value in model.state_dict().items() if name not in absent}
        assert differing(again.state_dict(), kept) == []
        assert (absent == []) == (architecture == "BertForPreTraining")


def test_export_includes_vocabulary(minilm: Path, tmp_path: Path) -> None:
    model = blank(minilm, 8)
    settings = {
        "config": model.config,
        "vocab_size": model.vocab_size,
        "tokenizer": TokenizerFiles(minilm / "vocab.txt", True),
    }
    export(model, tmp_path / "ours", **settings)
    here, there = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (tmp_path / "ours", minilm))
    for pair in PAIRS:
        assert here(*pair)["input_ids"] == there(*pair)["input_ids"]
