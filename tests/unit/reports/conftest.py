"""The plan shown in reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.specs.resolved import Flag
from tests.conftest import SMALL_TEXT


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "corpus.txt").write_text(SMALL_TEXT)
    resolved = resolve_spec(
        "pretrain",
        sets=["train.steps=40", "train.global_batch_size=32", "train.micro_batch_size=8", "train.precision=bf16"],
        flags={
            "recipe": Flag("small", "--recipe"),
            "data.text": Flag([str(folder / "corpus.txt")], "--data"),
            "environment.variables": Flag({"HUB_TOKEN": "hush!"}, "--env"),
        },
    )
    document: dict[str, Any] = json.loads(json.dumps(make_plan(resolved, home=folder).as_dict()))
    return document
