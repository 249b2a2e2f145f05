"""Budgets of a training step on a GPU, counted on fake tensors: synchronisations, copies, launches, memory."""

from __future__ import annotations

from typing import Any

import pytest
from fake_device import SCENES

from orchestrator.estimates.memory import activation_memory
from train_jobs.config import PretrainConfig

# Operators of a step: all forward and backward passes of three micro batches, and the optimizer. Two small layers,
# without compilation; views do not count. Each is a kernel launch or an allocation: raise a number only for a good
# reason.
OPERATORS = {
    "pretrain-lamb-bf16-packed": {"forward": 302, "backward": 342, "optimizer": 31},
    "pretrain-adamw-fp16-padded": {"forward": 419, "backward": 438, "optimizer": 4},
    "pretrain-lamb-bf16-packed-2": {"forward": 302, "backward": 342, "optimizer": 68},
    "pretrain-adamw-fp16-packed-2": {"forward": 302, "backward": 348, "optimizer": 50},
    "pretrain-lamb-bf16-packed-2-overlap": {"forward": 302, "backward": 351, "optimizer": 68},
    "glue-adamw-bf16-packed": {"forward": 188, "backward": 270, "optimizer": 4},
    "squad-lamb-fp16-padded": {"forward": 312, "backward": 351, "optimizer": 31},
    "entities-adamw-bf16-packed": {"forward": 180, "backward": 246, "optimizer": 4},
    "pretrain-adamw-fp16-fallback": {"forward": 464, "backward": 456, "optimizer": 4},
    "pretrain-adamw-fp32-fallback": {"forward": 372, "backward": 312, "optimizer": 4},
    "glue-adamw-fp16-fallback": {"forward": 350, "backward": 384, "optimizer": 4},
}


@pytest.mark.parametrize("scene", SCENES)
def test_step_reads_device_once(played: dict[str, Any], scene: str) -> None:
    for step in played[scene]["steps"]:
        assert step["reads"] == {"reduction": 1}, "a read makes the host wait for the device"


@pytest.mark.parametrize("scene", SCENES)
def test_report_reads_device_once_more(played: dict[str, Any], scene: str) -> None:
    assert played[scene]["report"]["reads"] == {"report": 1}


@pytest.mark.parametrize("scene", SCENES)
def test_step_copies_are_one_pinned_queued_group(played: dict[str, Any], scene: str) -> None:
    for step in played[scene]["steps"]:
        stages, pinned, queued = zip(*step["copies"], strict=True)
        assert len(stages) == 2, "the arrays of all micro batches, and the totals"
        assert set(stages) == {"other"}, "before the first forward pass"
        assert all(pinned)
        assert all(queued)


@pytest.mark.parametrize("scene", SCENES)
def test_multi_tensor_calls_take_fast_path(played: dict[str, Any], scene: str) -> None:
    assert all(step["slow_lists"] == {} for step in played[scene]["steps"])


@pytest.mark.parametrize("scene", SCENES)
def test_operators_do_not_grow(played: dict[str, Any], scene: str) -> None:
    step = played[scene]["steps"][-1]["operators"]
    assert {stage: step[stage] for stage in ("forward", "backward", "optimizer")} == OPERATORS[scene]


@pytest.mark.parametrize("kind", ["pretrain", "glue"])
def test_search_measures_packed_path_of_packed_training(played: dict[str, Any], kind: str) -> None:
    assert "packing_starts" in played["searched_arrays"][f"{kind}-packed"]
    assert "packing_starts" not in played["searched_arrays"][f"{kind}-padded"]


@pytest.mark.parametrize("layout", ["packed", "padded", "fallback"])
def test_saved_bytes_match_memory_estimate(played: dict[str, Any], layout: str) -> None:
    job = PretrainConfig.model_validate(
        {
            "model": {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 4,
                "max_position_embeddings": 64,
            },
            "data": {"text": ["x"], "sequence_length": 32, "vocab_size": 256},
        }
    )
    estimate = activation_memory(job, 256, micro_batch_size=1, activation_bytes=2, on_cpu=False) / 32
    assert played["saved_bytes"][layout] == pytest.approx(estimate, rel=0.1)


@pytest.mark.parametrize("scene", [name for name in SCENES if not name.split("-")[4:]])
def test_memory_of_optimizer_is_foreseen(played: dict[str, Any], scene: str) -> None:
    """Before the first step: two moments; LAMB also needs room for one more copy of weights as few as these."""
    later, weights = played[scene]["later"]
    copies = 3 if "lamb" in scene else 2
    assert later == copies * 4 * weights


def test_graphs_of_compiled_functions_begin_with_micro_batch(played: dict[str, Any]) -> None:
    found = played["graphs"]
    wanted = {"triton.cudagraphs": True}
    assert found["functions"] == [[name, wanted] for name in ("run_layers", "combine", "sum_head_losses")]
    assert found["begun"] == 3  # micro batches of the step
    # 128 sequences of 32 tokens: T is a multiple of 128, with three filling sequences of up to 64 tokens
    assert found["starts"] == [[128 + 3 + 1], [128 + 1 + 1]]
