"""Shipped recipes and presets: short, valid, with published values; every key is explained."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.jobs.registry import job_kind, kind_names
from orchestrator.specs.compute import ComputeSpec
from orchestrator.specs.job import EnvironmentSpec
from orchestrator.specs.reference import keys
from orchestrator.specs.resolved import PRESETS
from orchestrator.specs.site import spec_model
from train_jobs.artifacts.layers import (
    FINETUNE_RECIPES,
    PREDICT_RECIPES,
    PREPARE_RECIPES,
    PRETRAIN_RECIPES,
    RECIPES,
    ConfigLayer,
    build,
    dotted,
    leaves,
    merge,
    preset_names,
    read_file,
    read_overlays,
    read_preset,
)
from train_jobs.config import FinetuneConfig, PredictConfig, PrepareConfig, PretrainConfig
from train_jobs.config.command import CommandConfig
from train_jobs.config.errors import SpecError
from train_jobs.optim.factory import learning_rate

RECIPE_NAMES = [
    "base",
    "base-512",
    "base-azureml",
    "base-google",
    "continue",
    "large",
    "large-azureml",
    "large-google",
    "large-nvidia-phase1",
    "large-nvidia-phase2",
    "small",
    "small-512",
    "tiny",
]
PRESET_FILES = sorted(PRESETS.rglob("*.yaml"))
ALL_RECIPES = sorted((path.parent.name, path.stem) for path in RECIPES.rglob("*.yaml"))
MODELS: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "pretrain": (PretrainConfig, {}),
    "prepare": (PrepareConfig, {}),
    "finetune": (FinetuneConfig, {"init_from": "bert", "data": {"train": "a.tsv", "validation": "b.tsv"}}),
    "predict": (PredictConfig, {"model": "bert", "input": "a.tsv"}),
    "command": (CommandConfig, {"command": "python train.py"}),
}
PINNED = {
    "command/default": "12dd627fdc84",
    "finetune/entities": "4e0654c5c835",
    "finetune/glue": "8d1623c9753d",
    "finetune/glue-roberta": "09faf7bcecf7",
    "finetune/glue-stable": "9cfec648fac8",
    "finetune/squad": "19a3f06ef213",
    "predict/default": "e55b9d2541bd",
    "prepare/cased": "019d442dba36",
    "prepare/uncased": "bd7461fd4b7c",
    "pretrain/base": "bb45c1b5cbf2",
    "pretrain/base-512": "3f9538f045f4",
    "pretrain/base-azureml": "7c0f404aa2b0",
    "pretrain/base-google": "38c1aaaa1241",
    "pretrain/continue": "d686df1c4eea",
    "pretrain/large": "fa36fa8deb64",
    "pretrain/large-azureml": "c10351ccbd67",
    "pretrain/large-google": "503447f97b09",
    "pretrain/large-nvidia-phase1": "4e78e5dc4d29",
    "pretrain/large-nvidia-phase2": "71f4e20d6b9e",
    "pretrain/small": "ef09c895d177",
    "pretrain/small-512": "be6cf313c72b",
    "pretrain/tiny": "68ca6f04b584",
}


def keys_of(model: type[BaseModel]) -> set[str]:
    """Return dotted names of the fields of a config, including sections."""
    names = set()
    for name, info in model.model_fields.items():
        names.add(name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            names |= {f"{name}.{inner}" for inner in keys_of(info.annotation)}
    return names


def keys_in(tree: dict[str, Any]) -> set[str]:
    paths = [tuple(str(part) for part in path) for path, _ in leaves(tree)]
    return {".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}


def test_recipes_are_the_documented_ones() -> None:
    assert preset_names(PRETRAIN_RECIPES) == RECIPE_NAMES


def values_of(kind: str, name: str | None) -> dict[str, Any]:
    """Return the values of a job with a recipe, or with only defaults."""
    model, given = MODELS[kind]
    layers = read_preset(name, RECIPES / kind) if name else []
    return build(model, merge([*layers, ConfigLayer("test", given)])).model_dump(mode="json")


@pytest.mark.parametrize(("kind", "name"), ALL_RECIPES)
def test_recipe_is_short_and_lists_only_differences(kind: str, name: str) -> None:
    path = RECIPES / kind / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 40
    *below, own = read_preset(name, path.parent)
    base = read_file(path).tree.get("extends")
    assert [layer.source for layer in below][-1:] == ([f"preset {base}"] if base else [])
    before = {dotted(key): value for key, value in leaves(values_of(kind, base))}
    repeated = [dotted(key) for key, value in leaves(own.tree) if before[dotted(key)] == value]
    assert not base or repeated == []


@pytest.mark.parametrize(("kind", "name"), ALL_RECIPES)
def test_recipe_values_are_pinned(kind: str, name: str) -> None:
    """A changed default must not change a recipe: published values stay."""
    document = json.dumps(values_of(kind, name), sort_keys=True)
    assert hashlib.sha256(document.encode()).hexdigest()[:12] == PINNED[f"{kind}/{name}"]


def test_recipe_extending_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("train:\n  steps: 5\nextends: b\n")
    (tmp_path / "b.yaml").write_text("extends: a\n")
    with pytest.raises(SpecError, match="cannot read preset b") as caught:
        read_preset("a", tmp_path)
    assert caught.value.problems == ["preset b:1: extends: 'a': extends itself"]
    (tmp_path / "b.yaml").write_text("extends: c\n")
    with pytest.raises(SpecError, match="cannot read") as caught:
        read_overlays(tmp_path / "a.yaml")
    assert caught.value.problems == [f"{tmp_path}/b.yaml:1: extends: 'c': no such file: {tmp_path}/c.yaml"]


def test_values_of_an_extended_recipe_keep_their_origin() -> None:
    merged = merge(read_preset("large"))
    assert str(merged.origin(("train", "steps"))).startswith("preset large-nvidia-phase1:")
    assert str(merged.origin(("optimizer", "eps"))).startswith("preset base:")
    assert str(merged.origin(("checkpoint", "every"))).startswith("preset large:")


@pytest.mark.parametrize("kind", kind_names())
def test_every_key_is_explained(kind: str) -> None:
    bare = [key.name for key in keys(spec_model(job_kind(kind).spec)) if not key.text]
    assert bare == []


@pytest.mark.parametrize("kind", ["cased", "uncased"])
def test_recipe_of_text_sets_the_case(kind: str) -> None:
    assert values_of("prepare", kind)["data"]["lowercase"] == (kind == "uncased")
    assert preset_names(PREPARE_RECIPES) == ["cased", "uncased"]


TUNING = {  # rate, warm-up, epochs, batch, tokens, seeds, weight decay
    "glue": (2e-5, 0.1, 3, 32, 128, 1, 0.01),
    "glue-stable": (2e-5, 0.1, 20, 32, 128, 5, 0.01),
    "glue-roberta": (2e-5, 0.06, 10, 32, 128, 5, 0.1),
    "squad": (3e-5, 0.1, 2, 12, 384, 1, 0.01),
    "entities": (3e-5, 0.1, 4, 32, 128, 1, 0.01),
}


@pytest.mark.parametrize("name", TUNING)
def test_finetuning_recipe_has_published_values(name: str) -> None:
    made = build(
        FinetuneConfig, merge([*read_preset(name, FINETUNE_RECIPES), ConfigLayer("test", MODELS["finetune"][1])])
    )
    optimizer, train = made.optimizer, made.train
    assert TUNING[name] == (
        *(optimizer.learning_rate, made.schedule.warmup_fraction, train.epochs, train.global_batch_size),
        *(made.max_length, len(made.seeds), optimizer.weight_decay),
    )
    assert (optimizer.name, optimizer.bias_correction, made.ignored()) == ("adamw", True, [])
    assert made.evaluation.patience == (3 if name == "glue-roberta" else None)
    assert preset_names(FINETUNE_RECIPES) == sorted(TUNING)


def test_prediction_recipe_changes_no_default() -> None:
    assert values_of("predict", "default") == values_of("predict", None)
    assert preset_names(PREDICT_RECIPES) == ["default"]


@pytest.mark.parametrize(
    ("file", "section", "model"),
    [
        *((f"compute/{path.name}", "compute", ComputeSpec) for path in sorted((PRESETS / "compute").glob("*.yaml"))),
        ("environment/current.yaml", "environment", EnvironmentSpec),
    ],
)
def test_other_presets_set_everything_but_the_name(file: str, section: str, model: type[BaseModel]) -> None:
    tree = read_file(PRESETS / file).tree
    assert set(tree) == {section}
    assert set(tree[section]) == keys_of(model) - {"preset"}
    model.model_validate(tree[section])


@pytest.mark.parametrize("path", PRESET_FILES, ids=lambda path: path.stem)
def test_every_key_has_a_comment(path: Path) -> None:
    lines = path.read_text().splitlines()
    bare = [number for number in read_file(path).lines.values() if not lines[number - 2].lstrip().startswith("# ")]
    inside_lists = {number for key, number in read_file(path).lines.items() if isinstance(key[-1], int)}
    assert set(bare) - inside_lists == set()


def recipe(name: str) -> PretrainConfig:
    return build(PretrainConfig, merge(read_preset(name)))


def test_large_is_nvidias_first_phase() -> None:
    job = recipe("large")
    published = recipe("large-nvidia-phase1")
    for section in ("model", "data", "objective", "optimizer", "schedule", "train"):
        assert getattr(job, section) == getattr(published, section), section
    assert (job.model.hidden_size, job.model.num_hidden_layers, job.model.num_attention_heads) == (1024, 24, 16)
    assert (job.optimizer.name, job.optimizer.learning_rate) == ("lamb", 6e-3)
    assert (job.train.global_batch_size, job.train.steps, job.max_predictions) == (65_536, 7038, 20)
    assert round(job.schedule.warmup_fraction * job.train.steps) == 2001  # NVIDIA's 0.2843 of 7038
    assert (job.schedule.power, job.schedule.continuous) == (0.5, False)


def test_base_has_values_of_the_paper() -> None:
    job = recipe("base")
    assert job.model == PretrainConfig().model  # the defaults are BERT-base
    assert (job.optimizer.name, job.optimizer.learning_rate, job.optimizer.weight_decay) == ("adamw", 1e-4, 0.01)
    assert (job.train.global_batch_size, job.train.steps) == (256, 1_000_000)
    assert job.schedule.warmup_fraction * job.train.steps == 10_000


@pytest.mark.parametrize(
    ("name", "layers", "length", "predictions", "batch", "steps", "optimizer", "rate"),
    [
        ("large-nvidia-phase1", 24, 128, 20, 65_536, 7038, "lamb", 6e-3),
        ("large-nvidia-phase2", 24, 512, 80, 32_768, 1563, "lamb", 4e-3),
        ("large-azureml", 24, 512, 80, 4096, 187_000, "adamw", 2e-4),
        ("base-azureml", 12, 512, 80, 4096, 125_000, "adamw", 4e-4),
        ("large-google", 24, 128, 20, 256, 1_000_000, "adamw", 1e-4),
        ("base-google", 12, 128, 20, 256, 1_000_000, "adamw", 1e-4),
    ],
)
def test_recipes_have_published_values(
    name: str, layers: int, length: int, predictions: int, batch: int, steps: int, optimizer: str, rate: float
) -> None:
    job = recipe(name)
    assert job.model.num_hidden_layers == layers
    assert (job.model.hidden_size, job.model.num_attention_heads) == ((1024, 16) if layers == 24 else (768, 12))
    assert (job.data.sequence_length, job.max_predictions) == (length, predictions)
    assert (job.train.global_batch_size, job.train.steps, job.train.seed) == (batch, steps, 42)
    assert (job.optimizer.name, job.optimizer.learning_rate) == (optimizer, rate)
    assert (job.optimizer.betas, job.optimizer.weight_decay, job.optimizer.max_grad_norm) == ((0.9, 0.999), 0.01, 1.0)
    assert (job.optimizer.bias_correction, job.optimizer.trust_ratio) == (optimizer == "lamb", "matrices")
    assert job.optimizer.eps == (1e-8 if "azureml" in name else 1e-6)


@pytest.mark.parametrize(
    ("name", "points"),
    [
        # the last step of warm-up or the peak, the step after it, and a much later step
        ("large-nvidia-phase1", {1999: 6e-3 * 2000 / (0.2843 * 7038), 2000: 6e-3 * (5037 / 7038) ** 0.5, 7037: 0.0}),
        ("large-nvidia-phase2", {199: 4e-3 * 200 / (0.128 * 1563), 200: 4e-3 * (1362 / 1563) ** 0.5, 1562: 0.0}),
        ("large-azureml", {0: 0.0, 3740: 2e-4, 4740: 1.98e-4, 186_999: 3.170590269285573e-5}),
        ("base-azureml", {0: 0.0, 12_500: 4e-4, 13_020: 3.96e-4, 124_999: 4.547361955937022e-5}),
        ("base-google", {4999: 5e-5, 9999: 0.99e-4, 499_999: 5e-5, 999_999: 0.0}),
    ],
)
def test_schedules_give_published_rates(name: str, points: dict[int, float]) -> None:
    job = recipe(name)
    for step, expected in points.items():
        found = learning_rate(job.schedule, job.optimizer.learning_rate, step=step, total_steps=job.train.steps)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-18), step
