"""train.cuda_graphs: settings that exclude each other. What torch is asked for is in tests/gpu_contract."""

from __future__ import annotations

from typing import Any

import pytest

from train_jobs.artifacts.layers import ConfigLayer, build, merge
from train_jobs.config import PretrainConfig, SpecError, TrainConfig


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"train": {"micro_batch_size": "auto"}}, "cuda_graphs needs a number for micro_batch_size"),
        ({"train": {}}, "cuda_graphs needs a number for micro_batch_size"),
        ({"train": {"micro_batch_size": 8, "compile": False}}, "set compile to auto or true"),
        ({"train": {"micro_batch_size": 8, "overlap_all_reduce": True}}, "exclude each other"),
        ({"model": {"name": "mine:Model"}, "train": {"micro_batch_size": 8}}, "records the model bert only"),
    ],
)
def test_settings_that_graphs_cannot_have_are_refused(tree: dict[str, Any], message: str) -> None:
    tree["train"]["cuda_graphs"] = True
    with pytest.raises(SpecError) as caught:
        build(PretrainConfig, merge([ConfigLayer("--set", tree)]))
    (problem,) = caught.value.problems
    assert message in problem


def test_setting_is_stored_only_if_used() -> None:
    """Configurations of runs that were made before it existed do not differ from new ones."""
    assert "cuda_graphs" not in TrainConfig().model_dump()
    assert TrainConfig(cuda_graphs=True, micro_batch_size=8).model_dump()["cuda_graphs"] is True
