"""Shipped presets: complete, every key explained, valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.specs import ComputeSpec, EnvironmentSpec
from orchestrator.specs.resolve import PRESETS
from train_jobs.config import PretrainConfig
from train_jobs.config.load import PRESETS as RECIPES
from train_jobs.config.load import build, leaves, merge, preset_names, read_file, read_preset

RECIPE_NAMES = ["base", "large", "small", "tiny"]
PRESET_FILES = sorted([*RECIPES.glob("*.yaml"), *PRESETS.rglob("*.yaml")])


def keys_of(model: type[BaseModel]) -> set[str]:
    """Dotted names of the fields of a config, sections and what is in them."""
    names = set()
    for name, info in model.model_fields.items():
        names.add(name)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            names |= {f"{name}.{inner}" for inner in keys_of(info.annotation)}
    return names


def keys_in(tree: dict[str, Any]) -> set[str]:
    paths = [tuple(str(part) for part in path) for path, _ in leaves(tree)]
    return {".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}


def test_the_recipes_are_the_published_ones() -> None:
    assert preset_names(RECIPES) == RECIPE_NAMES


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_a_recipe_says_everything_and_is_valid(name: str) -> None:
    layer = read_preset(name)
    assert keys_in(layer.tree) == keys_of(PretrainConfig)
    build(PretrainConfig, merge([layer]))


@pytest.mark.parametrize(
    ("file", "section", "model"),
    [("compute/local.yaml", "compute", ComputeSpec), ("environment/current.yaml", "environment", EnvironmentSpec)],
)
def test_the_other_presets_say_everything_but_their_own_name(file: str, section: str, model: type[BaseModel]) -> None:
    tree = read_file(PRESETS / file).tree
    assert set(tree) == {section}
    assert set(tree[section]) == keys_of(model) - {"preset"}
    model.model_validate(tree[section])


@pytest.mark.parametrize("path", PRESET_FILES, ids=lambda path: path.stem)
def test_every_key_has_a_comment_above_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    bare = [number for number in read_file(path).lines.values() if not lines[number - 2].lstrip().startswith("# ")]
    inside_lists = {number for key, number in read_file(path).lines.items() if isinstance(key[-1], int)}
    assert set(bare) - inside_lists == set()


def test_large_is_nvidias_first_phase() -> None:
    job = build(PretrainConfig, merge([read_preset("large")]))
    assert (job.model.hidden_size, job.model.num_hidden_layers, job.model.num_attention_heads) == (1024, 24, 16)
    assert (job.optimizer.name, job.optimizer.learning_rate) == ("lamb", 6e-3)
    assert (job.train.global_batch_size, job.train.steps, job.max_predictions) == (65_536, 7038, 20)
    assert round(job.schedule.warmup_fraction * job.train.steps) == 2001  # NVIDIA's 0.2843 of 7038
    assert (job.schedule.power, job.schedule.continuous) == (0.5, False)


def test_base_is_the_papers() -> None:
    job = build(PretrainConfig, merge([read_preset("base")]))
    assert job.model == PretrainConfig().model  # the defaults are BERT-base
    assert (job.optimizer.name, job.optimizer.learning_rate, job.optimizer.weight_decay) == ("adamw", 1e-4, 0.01)
    assert (job.train.global_batch_size, job.train.steps) == (256, 1_000_000)
    assert job.schedule.warmup_fraction * job.train.steps == 10_000
