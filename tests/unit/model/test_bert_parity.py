"""Our BERT equals the transformers BERT: same names, logits, loss and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers

from train_jobs.config import ModelConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.models.bert.primitives import Dropout, dropout

SHAPE = ModelConfig(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=24,
    layer_norm_eps=1e-10,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
VOCAB, BATCH, LENGTH = 56, 3, 16
LENGTHS = torch.tensor([16, 9, 1])

Models = tuple[BertForPreTraining, transformers.BertForPreTraining]
Inputs = dict[str, torch.Tensor]


@pytest.fixture
def models() -> Models:
    """Return both models with the same nonzero weights, large enough for distinct logits."""
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=VOCAB, **SHAPE.model_dump(exclude={"pad_vocab_to_multiple_of"}))
    theirs = transformers.BertForPreTraining(config).eval()
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, mean=float(name.endswith("LayerNorm.weight")), std=0.2)
    ours = BertForPreTraining(SHAPE, VOCAB).eval()
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()})
    return ours, theirs


@pytest.fixture
def inputs() -> Inputs:
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(1, VOCAB, (BATCH, LENGTH), generator=generator)
    input_ids[:, 12:] = 0  # [PAD], whose row gets no gradient from the embedding
    return {
        "input_ids": input_ids,
        "token_type_ids": torch.randint(0, 2, (BATCH, LENGTH), generator=generator),
        "attention_mask": torch.arange(LENGTH) < LENGTHS[:, None],
    }


def their_logits(model: transformers.BertForPreTraining, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    output = model(**{name: value.long() for name, value in inputs.items()})
    return output.prediction_logits, output.seq_relationship_logits


def test_parameter_names_match_hugging_face(models: Models) -> None:
    ours, theirs = models
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    tied = set(theirs.state_dict()) - set(ours.state_dict())
    assert tied == {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert set(ours.state_dict()) < set(theirs.state_dict())


def test_our_weights_load_in_transformers(models: Models) -> None:
    ours, theirs = models
    initialise(ours, 3)
    problems = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert problems.unexpected_keys == []
    assert set(problems.missing_keys) == {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # tied
    theirs.tie_weights()
    assert torch.equal(theirs.cls.predictions.decoder.weight, ours.bert.embeddings.word_embeddings.weight)


def test_logits_without_padding_match_transformers(models: Models, inputs: Inputs) -> None:
    ours, theirs = models
    del inputs["attention_mask"]
    with torch.no_grad():
        for mine, expected in zip(ours(**inputs), their_logits(theirs, inputs), strict=True):
            assert expected.std() > 0.1
            assert (mine - expected).abs().max() < 1e-5


def test_logits_with_padding_match_transformers(models: Models, inputs: Inputs) -> None:
    ours, theirs = models
    mask = inputs["attention_mask"]
    with torch.no_grad():
        mlm, nsp = ours(**inputs)
        their_mlm, their_nsp = their_logits(theirs, inputs)
        unmasked, _ = ours(inputs["input_ids"], inputs["token_type_ids"])
    assert (mlm - their_mlm)[mask].abs().max() < 1e-5
    assert (nsp - their_nsp).abs().max() < 1e-5
    assert (mlm - unmasked)[mask].abs().max() > 0.1  # otherwise the mask would have no effect


@pytest.mark.parametrize("padded", [True, False])
def test_loss_and_gradients_match_transformers(models: Models, inputs: Inputs, padded: bool) -> None:
    ours, theirs = models
    if not padded:
        del inputs["attention_mask"]
    labels = torch.where(torch.rand(BATCH, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.4, 7, -100)
    next_sentence = torch.tensor([0, 1, 1])
    theirs_in = {name: value.long() for name, value in inputs.items()}
    expected = theirs(**theirs_in, labels=labels, next_sentence_label=next_sentence).loss
    expected.backward()
    mlm, nsp = ours(**inputs)
    loss = F.cross_entropy(mlm.flatten(0, 1), labels.flatten()) + F.cross_entropy(nsp, next_sentence)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-5, msg=name)
        assert parameter.grad.abs().max() > 0 or name.endswith("key.bias"), name


def test_dropout_is_at_same_positions_as_transformers(
    models: Models, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both use the same random masks: ours are replayed in theirs in the order of the forward pass."""
    ours, theirs = models
    theirs.set_attn_implementation("eager")  # the fused kernel draws its own mask
    monkeypatch.setattr(F, "dropout", lambda x, p=0.5, training=True, inplace=False: dropout(x, p) if training else x)
    for module in (*ours.modules(), *theirs.modules()):
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
        if isinstance(module, Dropout):
            module.probability = 0.2
    for layer in ours.bert.encoder.layer:
        layer.attention.self.dropout_prob = 0.3
    for layer in theirs.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.3
    del inputs["attention_mask"]
    logits = []
    with torch.no_grad():
        for model in (ours, theirs):
            model.train()
            torch.manual_seed(4)
            logits.append(ours(**inputs) if model is ours else their_logits(theirs, inputs))
    for mine, expected in zip(*logits, strict=True):
        assert (mine - expected).abs().max() < 1e-5
    assert (logits[0][0] - ours.eval()(**inputs)[0]).abs().max() > 0.1


def test_config_with_different_shape_matches() -> None:
    shape = SHAPE.model_copy(update={"num_attention_heads": 2, "type_vocab_size": 3, "max_position_embeddings": 17})
    torch.manual_seed(0)
    exported = shape.model_dump(exclude={"pad_vocab_to_multiple_of"})
    theirs = transformers.BertForPreTraining(transformers.BertConfig(vocab_size=40, **exported)).eval()
    ours = BertForPreTraining(shape, 40).eval()
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()})
    inputs = {"input_ids": torch.arange(17)[None], "token_type_ids": torch.arange(17)[None] % 3}
    with torch.no_grad():
        for mine, expected in zip(ours(**inputs), their_logits(theirs, inputs), strict=True):
            assert (mine - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("shape", "vocab_size", "parameters"),
    [
        ({}, 30_522, 110_106_428),
        ({}, 30_528, 110_111_042),
        (
            {
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
            30_522,
            336_226_108,
        ),
    ],
    ids=["base", "base-padded", "large"],
)
def test_parameter_counts_match_published_models(shape: dict[str, int], vocab_size: int, parameters: int) -> None:
    with torch.device("meta"):
        ours = BertForPreTraining(ModelConfig(**shape), vocab_size)
        theirs = transformers.BertForPreTraining(transformers.BertConfig(vocab_size=vocab_size, **shape))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert counts == [parameters, parameters]
