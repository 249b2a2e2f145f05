"""Optimizers built from the configuration for the parameters of a real model."""

from __future__ import annotations

import pytest
import torch

from train_jobs.config import ModelConfig, OptimizerConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.optim.factory import build_optimizer, parameter_groups

SHAPE = ModelConfig(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=8
)


def small_model() -> BertForPreTraining:
    model = BertForPreTraining(SHAPE, 16)
    initialise(model, 0)
    return model


def set_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_matrices_decay_biases_and_layernorm_do_not() -> None:
    decay, no_decay = parameter_groups(small_model().named_parameters(), 0.25)
    assert (decay["weight_decay"], no_decay["weight_decay"]) == (0.25, 0.0)
    matrices = {name for name, _ in decay["params"]}
    others = {name for name, _ in no_decay["params"]}
    assert {"bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.self.query.weight"} <= matrices
    assert {"bert.embeddings.LayerNorm.weight", "cls.predictions.bias", "bert.pooler.dense.bias"} <= others
    assert all(name.endswith("weight") and "LayerNorm" not in name for name in matrices)
    assert matrices | others == set(small_model().state_dict())


def test_frozen_parameters_are_omitted() -> None:
    model = small_model()
    model.freeze_next_sentence()
    names = {name for group in parameter_groups(model.named_parameters(), 0.1) for name, _ in group["params"]}
    assert set(model.state_dict()) - names == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }


@pytest.mark.parametrize("name", ["lamb", "adamw"])
def test_model_without_biases_has_one_group(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = build_optimizer(OptimizerConfig(name=name), [("dense.weight", weight)])
    assert [group["param_names"] for group in optimizer.param_groups] == [["dense.weight"]]


def test_parameter_names_are_in_state_dict() -> None:
    model = small_model()
    state = build_optimizer(OptimizerConfig(), model.named_parameters()).state_dict()
    names = [name for group in state["param_groups"] for name in group["param_names"]]
    assert sorted(names) == sorted(model.state_dict())


def test_adamw_matches_torch() -> None:
    config = OptimizerConfig(name="adamw", learning_rate=1e-2, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.1)
    ours, theirs = small_model(), small_model()
    optimizer = build_optimizer(config, ours.named_parameters())
    groups = [
        {"params": [p for n, p in theirs.named_parameters() if ("bias" in n or "LayerNorm" in n) == plain]}
        for plain in (False, True)
    ]
    groups[1]["weight_decay"] = 0.0
    plain = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.1, foreach=False)
    for step in range(5):
        for model, which in ((ours, optimizer), (theirs, plain)):
            set_gradients(model, step)
            which.step()
    assert optimizer.param_groups[0]["fused"]
    for (name, left), right in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize("trust_ratio", ["matrices", "all"])
@pytest.mark.parametrize("weight_decay", [0.01, 0.0])
def test_lamb_trust_ratio_applies_to_configured_tensors(trust_ratio: str, weight_decay: float) -> None:
    config = OptimizerConfig.model_validate(
        {"trust_ratio": trust_ratio, "weight_decay": weight_decay, "learning_rate": 0.5}
    )
    model = small_model()
    matrix, layer_norm = (model.get_parameter(f"bert.embeddings.{n}.weight") for n in ("word_embeddings", "LayerNorm"))
    torch.nn.init.constant_(layer_norm, 4.0)
    before = [matrix.detach().clone(), layer_norm.detach().clone()]
    optimizer = build_optimizer(config, model.named_parameters())
    set_gradients(model, 0)
    optimizer.step()
    after = [matrix.detach(), layer_norm.detach()]
    moves = [float((new - old).norm() / old.norm()) for new, old in zip(after, before, strict=True)]
    # with a trust ratio a tensor moves by lr x its norm; the first Adam step without one moves each 4 by lr x 1
    assert moves == pytest.approx([0.5, 0.5 if trust_ratio == "all" else 0.125], rel=1e-4)


def test_lamb_receives_its_options() -> None:
    config = OptimizerConfig(betas=(0.7, 0.8), eps=1e-3, bias_correction=False, learning_rate=0.25)
    optimizer = build_optimizer(config, small_model().named_parameters())
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["bias_correction"], group["lr"]) == ((0.7, 0.8), 1e-3, False, 0.25)


def test_layer_decay_lowers_rate_of_lower_layers() -> None:
    model = BertForPreTraining(SHAPE.model_copy(update={"num_hidden_layers": 2}), 16)
    optimizer = build_optimizer(
        OptimizerConfig(name="adamw", weight_decay=0.25), model.named_parameters(), layer_decay=0.5
    )
    scales = {name: group["lr_scale"] for group in optimizer.param_groups for name in group["param_names"]}
    decays = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["param_names"]}
    assert scales.keys() == dict(model.named_parameters()).keys()
    assert {scales[name] for name in scales if "encoder.layer.1." in name} == {0.5}
    assert {scales[name] for name in scales if "encoder.layer.0." in name} == {0.25}
    assert {scales[name] for name in scales if "embeddings." in name} == {0.125}
    assert {scales[name] for name in scales if "pooler" in name or "cls." in name} == {1.0}
    for name, decay in decays.items():
        assert decay == (0.0 if "LayerNorm" in name or name.endswith("bias") else 0.25), name


def test_groups_without_layer_decay_are_unchanged() -> None:
    groups = parameter_groups(small_model().named_parameters(), 0.25, layer_decay=1.0)
    assert [sorted(group) for group in groups] == [["params", "weight_decay"]] * 2
