"""Which GPUs the nodes of a local run see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends.local import launch

TWO_NODES: Any = SimpleNamespace(device="gpu", nodes=2, processes_per_node=2)


@pytest.mark.parametrize(
    ("callers", "expected"),
    [(None, ["0,1", "2,3"]), ("4,5,6,7", ["4,5", "6,7"]), ("GPU-a,GPU-b,GPU-c,GPU-d", ["GPU-a,GPU-b", "GPU-c,GPU-d"])],
)
def test_nodes_divide_the_gpus_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, callers: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if callers is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", callers)
    found = [launch._node_variables(TWO_NODES, node, "1234")["CUDA_VISIBLE_DEVICES"] for node in range(2)]
    assert found == expected
