"""Fine-tuning heads: logits, losses and gradients match transformers; models are saved with their labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from train_jobs.config import ModelConfig, TrainingError
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise, length_mask
from train_jobs.models.bert.task_heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Finetuned,
    class_loss,
    number_loss,
    span_loss,
)
from train_jobs.models.huggingface import (
    TokenizerFiles,
    export,
    label_settings,
    load_for_finetuning,
    load_weights,
    saved_labels,
)
from train_jobs.models.packing import Packing, packing_arrays

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(59))]
SHAPE = ModelConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
LENGTHS = [40, 7, 23, 40, 12]
NAMES = ("entailment", "neutral", "contradiction")
LABELS = torch.tensor([0, 2, 1, 2, 2])
NUMBERS = torch.tensor([0.0, 5.0, 2.5, 3.2, 1.0])
FIRST, LAST = torch.tensor([0, 3, 5, 39, 2]), torch.tensor([0, 6, 22, 39, 11])
WEIGHTS = torch.tensor([0.5, 2.0, 1.0])

Kind = tuple[Callable[[], Finetuned], tuple[str, ...], str]
KINDS: dict[str, Kind] = {
    "classes": (lambda: BertForSequenceClassification(SHAPE, 64, 3), NAMES, "AutoModelForSequenceClassification"),
    "number": (lambda: BertForSequenceClassification(SHAPE, 64, 1), (), "AutoModelForSequenceClassification"),
    "span": (lambda: BertForQuestionAnswering(SHAPE, 64), (), "AutoModelForQuestionAnswering"),
    "tags": (lambda: BertForTokenClassification(SHAPE, 64, 3), NAMES, "AutoModelForTokenClassification"),
}


def make_model(kind: str, seed: int = 3) -> Finetuned:
    model = KINDS[kind][0]()
    initialise(model, seed)
    with torch.no_grad():
        for (
            name,
            parameter,
        ) in model.named_parameters():  # nonzero biases, as after training
            if name.startswith(("classifier", "qa_outputs")):
                parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(seed))
    return model


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


def save(model: Finetuned | BertForPreTraining, folder: Path, vocabulary: Path, **more: Any) -> Path:
    export(
        model,
        folder,
        config=SHAPE,
        vocab_size=64,
        tokenizer=TokenizerFiles(vocabulary, lowercase=True),
        config_entries=more,
    )
    return folder


def batch(lengths: list[int] = LENGTHS) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(1)
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    arrays = {
        "input_ids": np.where(real, rng.integers(5, 64, real.shape), 0),
        "token_type_ids": np.where(real, rng.integers(0, 2, real.shape), 0),
        "lengths": np.array(lengths),
        "tags": np.where(real & (rng.random(real.shape) < 0.7), rng.integers(0, 3, real.shape), -100),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def logits_of(model: Finetuned, given: dict[str, torch.Tensor], *, packed: bool) -> torch.Tensor:
    size = given["input_ids"].shape[1]
    if packed:
        arrays = packing_arrays(given["lengths"].numpy(), size)
        packing = Packing.from_batch({name: torch.from_numpy(array) for name, array in arrays.items()})
        assert packing is not None
        return model(given["input_ids"], given["token_type_ids"], packing=packing)
    return model(given["input_ids"], given["token_type_ids"], length_mask(given["lengths"], size))


def loss_of(kind: str, logits: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss as defined by transformers."""
    if kind == "classes":
        return class_loss(logits, LABELS) / len(LABELS)
    if kind == "number":
        return number_loss(logits, NUMBERS) / len(NUMBERS)
    if kind == "tags":
        return class_loss(logits, given["tags"]) / (given["tags"] >= 0).sum()
    return span_loss(logits, FIRST, LAST, given["lengths"]) / len(FIRST)


def theirs_of(kind: str, theirs: Any, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and loss of the transformers model."""
    mask = length_mask(given["lengths"], given["input_ids"].shape[1])
    text = {"input_ids": given["input_ids"], "token_type_ids": given["token_type_ids"], "attention_mask": mask.long()}
    if kind != "span":
        found = theirs(**text, labels={"classes": LABELS, "number": NUMBERS, "tags": given["tags"]}[kind])
        return found.logits, found.loss
    found = theirs(**text, start_positions=FIRST, end_positions=LAST)
    if mask.all():
        return torch.stack([found.start_logits, found.end_logits], -1), found.loss
    pairs = ((found.start_logits, FIRST), (found.end_logits, LAST))  # padding cannot be an answer
    losses = [torch.nn.functional.cross_entropy(one.masked_fill(~mask, -1e30), at) for one, at in pairs]
    return torch.stack([found.start_logits, found.end_logits], -1), sum(losses) / 2


@pytest.mark.parametrize("way", ["padded", "packed", "one length"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_gradients_match_transformers(tmp_path: Path, vocabulary: Path, kind: str, way: str) -> None:
    model = make_model(kind)
    _, labels, auto = KINDS[kind]
    folder = save(model, tmp_path / "model", vocabulary, **label_settings(model, labels))
    theirs, report = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(theirs).__name__ == model.hugging_face
    given = batch([40] * 5 if way == "one length" else LENGTHS)
    logits = logits_of(model, given, packed=way == "packed")
    loss = loss_of(kind, logits, given)
    loss.backward()
    expected_logits, expected = theirs_of(kind, theirs.eval(), given)
    expected.backward()
    real = slice(None) if logits.dim() == 2 else length_mask(given["lengths"], 40)
    assert expected_logits.std() > 0.01
    torch.testing.assert_close(logits[real], expected_logits[real], rtol=0, atol=1e-5)
    assert abs(loss.item() - expected.item()) < 1e-5
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        there = gradients[name]
        assert parameter.grad is not None
        assert there is not None
        assert (parameter.grad - there).abs().max() < 1e-5, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_predictions_are_not_rounded_to_16_bit(kind: str, training: bool) -> None:
    model = make_model(kind).train(training)
    with torch.set_grad_enabled(training), torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(model, batch(), packed=True)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())
    exact = logits_of(model, batch(), packed=True)
    torch.testing.assert_close(logits, exact, atol=0.05, rtol=0.05)


def test_class_weights_match_torch() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.cross_entropy(logits, LABELS, weight=WEIGHTS)
    assert torch.allclose(class_loss(logits, LABELS, WEIGHTS) / WEIGHTS[LABELS].sum(), expected)


def test_padding_is_never_answer() -> None:
    logits = torch.zeros(1, 4, 2)
    logits[0, 2:] = 50.0
    assert span_loss(logits, torch.tensor([1]), torch.tensor([0]), torch.tensor([2])).item() == pytest.approx(0.693147)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_model_round_trip_is_bit_exact_with_labels(tmp_path: Path, vocabulary: Path, kind: str) -> None:
    model = make_model(kind)
    _, labels, auto = KINDS[kind]
    folder = save(model, tmp_path / "model", vocabulary, **label_settings(model, labels))
    config = transformers.AutoConfig.from_pretrained(folder)
    if labels:
        assert config.id2label == dict(enumerate(labels))
        assert config.label2id == {name: number for number, name in enumerate(labels)}
        assert saved_labels(folder) == list(labels)
    expected = {"classes": "single_label_classification", "number": "regression"}.get(kind)
    assert config.problem_type == expected
    if kind == "number":
        assert config.num_labels == 1
    loaded = getattr(transformers, auto).from_pretrained(folder)
    loaded.save_pretrained(tmp_path / "again")
    other = make_model(kind, seed=4)
    assert load_for_finetuning(other, tmp_path / "again", labels) == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_head_with_other_labels_is_ignored(tmp_path: Path, vocabulary: Path) -> None:
    model = make_model("classes")
    folder = save(model, tmp_path / "model", vocabulary, **label_settings(model, NAMES))
    other = make_model("classes", seed=4)
    before = other.classifier.weight.clone()
    absent = load_for_finetuning(other, folder, ("a", "b", "c"))
    assert absent == ["classifier.weight", "classifier.bias"]
    assert torch.equal(other.classifier.weight, before)
    assert torch.equal(other.bert.pooler.dense.weight, model.bert.pooler.dense.weight)
    two = BertForSequenceClassification(SHAPE, 64, 2)
    assert load_for_finetuning(two, folder, ("0", "1")) == absent
    number = make_model("number")
    assert load_for_finetuning(number, folder, ()) == absent
    tags = make_model("tags", seed=4)
    assert load_for_finetuning(tags, folder, NAMES) == absent, "the same names, and another kind of head"


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_head_without_problem_type_is_kept(tmp_path: Path, vocabulary: Path, kind: str) -> None:
    model, labels = make_model(kind), KINDS[kind][1]
    folder = save(model, tmp_path / "model", vocabulary, **{**label_settings(model, labels), "problem_type": None})
    other = make_model(kind, seed=4)
    assert load_for_finetuning(other, folder, labels) == []
    assert torch.equal(other.classifier.weight, model.classifier.weight)


def test_labels_in_other_order_are_reordered(tmp_path: Path, vocabulary: Path) -> None:
    model = make_model("classes")
    order = ("contradiction", "neutral", "entailment")  # as in some MNLI models
    folder = save(model, tmp_path / "model", vocabulary, **label_settings(model, order))
    other = make_model("classes", seed=4)
    assert load_for_finetuning(other, folder, NAMES) == []
    given = batch()
    expected = logits_of(model, given, packed=False)
    torch.testing.assert_close(logits_of(other, given, packed=False), expected[:, [2, 1, 0]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_training_starts_from_pretrained_folder(tmp_path: Path, vocabulary: Path, kind: str) -> None:
    pretrained = BertForPreTraining(SHAPE, 64)
    initialise(pretrained, 7)
    folder = save(pretrained, tmp_path / "model", vocabulary)
    model = make_model(kind)
    absent = load_for_finetuning(model, folder, KINDS[kind][1])
    head = "qa_outputs" if kind == "span" else "classifier"
    assert absent == [f"{head}.weight", f"{head}.bias"]
    for name, tensor in model.bert.state_dict().items():
        assert torch.equal(tensor, pretrained.bert.state_dict()[name]), name


def test_missing_pooler_is_initialised(tmp_path: Path, vocabulary: Path) -> None:
    folder = save(make_model("span"), tmp_path / "model", vocabulary, architectures=["BertForQuestionAnswering"])
    absent = load_for_finetuning(make_model("classes"), folder, NAMES)
    assert {name.rpartition(".")[0] for name in absent} == {"bert.pooler.dense", "classifier"}


def test_pretraining_starts_from_fine_tuned_folder(tmp_path: Path, vocabulary: Path) -> None:
    folder = save(make_model("classes"), tmp_path / "model", vocabulary, **label_settings(make_model("classes"), NAMES))
    absent = load_weights(BertForPreTraining(SHAPE, 64), folder)
    assert absent
    assert all(name.startswith("cls.") for name in absent)


def test_larger_model_is_refused(tmp_path: Path, vocabulary: Path) -> None:
    folder = save(make_model("span"), tmp_path / "model", vocabulary)
    smaller = BertForQuestionAnswering(SHAPE.model_copy(update={"num_hidden_layers": 1}), 64)
    with pytest.raises(TrainingError, match="contains a larger model"):
        load_for_finetuning(smaller, folder, ())


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"no such file: .*config\.json"):
        load_for_finetuning(make_model("span"), tmp_path, ())


def test_real_weights_in_classifier_match_transformers(minilm: Path) -> None:
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=2).eval()
    config = json.loads((minilm / "config.json").read_text())
    shape = ModelConfig(**{key: config[key] for key in SHAPE.model_dump() if key in config})
    model = BertForSequenceClassification(shape, config["vocab_size"], 2).eval()
    assert load_for_finetuning(model, minilm, ("0", "1")) == ["classifier.weight", "classifier.bias"]
    model.classifier.load_state_dict(theirs.classifier.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    text = tokenizer(["A ship.", "Prices rose in 2019, again."], ["It sank.", "No."], padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(text["input_ids"], text["token_type_ids"], text["attention_mask"].bool())
        torch.testing.assert_close(found, theirs(**text).logits, rtol=0, atol=1e-5)
