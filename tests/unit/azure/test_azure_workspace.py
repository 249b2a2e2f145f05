"""Sources of the workspace settings, and their order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.backends.azure.options import VARIABLES, find_workspace
from orchestrator.support.errors import SpecError, UsageError

FULL = {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}


def test_first_source_of_each_name_wins(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FULL))
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = find_workspace({}, {}, below)
    assert (found.subscription_id, found.resource_group, found.workspace) == ("s", "g", "w")
    assert found.id == "/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
    environ = {VARIABLES["resource_group"]: "other", VARIABLES["workspace"]: "theirs"}
    found = find_workspace({"workspace": "mine", "resource_group": None}, environ, below)
    assert (found.subscription_id, found.resource_group, found.workspace) == ("s", "other", "mine")
    assert find_workspace({"workspace": "mine"}, environ, below, name="named").workspace == "named"


def test_nearest_azure_ml_config_is_used(tmp_path: Path) -> None:
    (tmp_path / ".azureml").mkdir()
    (tmp_path / ".azureml" / "config.json").write_text(json.dumps(FULL))
    assert find_workspace({}, {}, tmp_path).workspace == "w"
    below = tmp_path / "model"
    below.mkdir()
    (below / "config.json").write_text(json.dumps({"hidden_size": 8}))
    assert find_workspace({}, {}, below).workspace == "w", "that of another program hides nothing"


def test_missing_names_are_reported_first(tmp_path: Path) -> None:
    found = find_workspace({}, {VARIABLES["workspace"]: "w"}, tmp_path)
    with pytest.raises(UsageError) as failure:
        found.require()
    missing = str(failure.value.facts["missing"])
    assert VARIABLES["subscription_id"] in missing
    assert VARIABLES["workspace"] not in missing
    assert find_workspace({}, dict.fromkeys(VARIABLES.values(), "x"), tmp_path).require().missing == []


def test_invalid_name_or_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="invalid workspace 'a/b'"):
        find_workspace({"workspace": "a/b"}, {}, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecError, match="cannot read"):
        find_workspace({}, {}, tmp_path)
