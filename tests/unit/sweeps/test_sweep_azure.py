"""Requests for Azure's sweep service compared with golden files and Microsoft's schema, and read by a trial.

UPDATE_GOLDEN=1 pytest tests/unit/sweeps/test_sweep_azure.py     rewrites the golden files; read the diff
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends.azure.assets import train_image
from orchestrator.backends.azure.native_sweeps import distribution, encoded, settings_of, sweep_request
from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.submission import AzureRequest, build_request
from orchestrator.jobs.base import Plan
from orchestrator.jobs.resolve import make_plan
from orchestrator.specs.space import Option, Parameter
from orchestrator.support.errors import SpecError
from orchestrator.sweeps.design.sweep_plan import ResolvedSweep, SpecContext, resolve_sweep
from orchestrator.testing.schemas.schema import mismatches
from tests.conftest import MICRO, SMALL_TEXT
from tests.unit.sweeps.laws import CASES
from train_jobs.artifacts.layers import build, merge, read_assignments
from train_jobs.config import PretrainConfig

GOLDEN = Path(__file__).parent / "golden"
VERSION = "2024-01-01-preview"
PLACE = Workspace(subscription_id="0000-1111", resource_group="group", workspace="place")
RATE: dict[str, Any] = {"optimizer.learning_rate": {"low": 1e-6, "high": 1e-4, "log": True}}
SWEEPS: dict[str, dict[str, Any]] = {
    "random-bandit": {
        "space": {
            **RATE,
            "train.steps": {"low": 10, "high": 100, "q": 10},
            "model.initializer_range": {"mean": 0.02, "sd": 0.001},
            "optimizer.weight_decay": {"mean": -4, "sd": 0.5, "log": True},
            "optimizer.betas": [[0.9, 0.98], [0.9, 0.999]],
            "objective.next_sentence": [True, False],
            "schedule": [{"name": "polynomial", "power": 1.0}, {"name": "cosine"}],
        },
        "early_termination": {"policy": "bandit", "slack_factor": 0.1, "delay": 2},
        "limits": {"trials": 20, "concurrent": 4, "hours": 2.5, "trial_hours": 0.0001},
    },
    "sobol-truncation": {
        "space": {"train.log_every": {"low": 1, "high": 64, "log": True, "q": 1}},
        "sampling": {"name": "sobol", "seed": 7},
        "early_termination": {"policy": "truncation", "percentage": 20, "interval": 3},
        "objective": {"metric": "validation_mlm_accuracy", "goal": "maximize"},
        "limits": {"trials": 8, "concurrent": 100, "trial_hours": 5},
        "trial": {
            "compute": {"sku": "Standard_ND96isr_H100_v5", "nodes": 2, "tier": "spot"},
            "train": {"global_batch_size": 64},
            "azure": {"timeout_hours": 12, "identity": "managed"},
        },
    },
    "grid-median": {
        "space": {"optimizer.name": ["adamw", "lamb"], "validation.every": [2, 3]},
        "sampling": "grid",
        "early_termination": {"policy": "median", "delay": 5},
        "limits": {"trials": None},
    },
    "serverless": {"space": {**RATE}, "trial": {"compute": {"cluster": "serverless", "tier": "spot"}}},
    "bayesian": {
        "space": {"optimizer.learning_rate": {"low": 1e-6, "high": 1e-4}, "optimizer.weight_decay": [0, 0.01]},
        "sampling": "bayesian",
    },
}


def resolve(**sections: Any) -> ResolvedSweep:
    """Return a sweep of the micro job on Azure."""
    Path("notes.txt").write_text(SMALL_TEXT)
    trial = json.loads(json.dumps({**MICRO, "backend": "azure"}))
    trial["data"]["text"] = ["notes.txt"]
    trial["compute"] = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    for section, values in sections.pop("trial", {}).items():
        trial[section] = {**trial.get(section, {}), **values} if isinstance(values, dict) else values
    document = {"limits": {"trials": 4}, **sections, "trial": trial}
    Path("sweep.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return resolve_sweep(file=Path("sweep.yaml"), context=SpecContext(environ={}))


def plan_and_request(sweep: ResolvedSweep) -> tuple[Plan, AzureRequest]:
    plan = make_plan(sweep.trial, home=Path("home"))
    return plan, build_request(plan, "search-1", PLACE)


def with_placeholders(plan: Plan, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with values that differ between checkouts replaced by their names."""
    text = json.dumps(body)
    tags = body["properties"]["tags"]
    names = {
        plan.snapshot.digest: "SNAPSHOT",
        plan.snapshot.digest[:16]: "SNAPSHOT_16",
        plan.run_hash: "RUN_HASH",
        tags.get("orchestrator.commit", "no commit"): "COMMIT",
        train_image(plan.compute.device).version: "IMAGE",
        f'"orchestrator.user": "{getpass.getuser()}"': '"orchestrator.user": "USER"',
        tags["orchestrator.request"]: "REQUEST",
    }
    for value, name in names.items():
        text = text.replace(value, name)
    found: dict[str, Any] = json.loads(text)
    found["properties"]["tags"].setdefault("orchestrator.commit", "COMMIT")
    return found


def test_sweep_has_the_identity_of_its_trials() -> None:
    client = "00000000-0000-4000-8000-000000000009"
    access = {"identity": "managed", "identity_client_id": client, "ssh_public_key": "ssh-ed25519 AAAAC3Nza me@here"}
    sweep = resolve(space=RATE, trial={"azure": access})
    body = sweep_request(sweep.spec, plan_and_request(sweep)[1]).job
    assert body["properties"]["identity"] == {"identityType": "Managed", "clientId": client}
    assert mismatches("jobs", VERSION, body) == []


@pytest.mark.parametrize("name", SWEEPS)
def test_sweep_body_equals_golden_file(name: str) -> None:
    sweep = resolve(**SWEEPS[name])
    plan, request = plan_and_request(sweep)
    body = sweep_request(sweep.spec, request).job
    assert mismatches("jobs", VERSION, body) == []
    found, path = with_placeholders(plan, body), GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_wire_form_matches_the_local_distribution(name: str) -> None:
    """`test_sweep_space` compares draws with the same wire forms."""
    parameter, wire = CASES[name]
    assert distribution(Parameter.model_validate(parameter))._to_rest_object() == wire


def test_grid_sends_randint_as_choices() -> None:
    parameter = Parameter.model_validate({"randint": 3})
    assert distribution(parameter)._to_rest_object() == ["randint", [3]]
    assert distribution(parameter, as_choices=True)._to_rest_object() == ["choice", [[0, 1, 2]]]


@pytest.mark.parametrize("as_text", [False, True])
def test_settings_are_restored_from_the_wire(as_text: bool) -> None:
    """The service may return all names and values as text."""
    spec = resolve(**SWEEPS["random-bandit"]).spec
    values: dict[str, Any] = {
        "optimizer__learning_rate": 1.5e-05,
        "train__steps": 20.0,
        "optimizer__betas": "[0.9, 0.999]",
        "objective__next_sentence": "false",
        "schedule": '{"name": "polynomial", "power": 1.0}',
    }
    found = settings_of(spec.space, {name: str(value) for name, value in values.items()} if as_text else values)
    assert found == {
        "optimizer.learning_rate": 1.5e-05,
        "train.steps": 20,
        "optimizer.betas": [0.9, 0.999],
        "objective.next_sentence": False,
        "schedule.name": "polynomial",
        "schedule.power": 1.0,
    }
    types = {path: type(value) for path, value in found.items()}
    assert (types["train.steps"], types["objective.next_sentence"], types["schedule.power"]) == (int, bool, float)


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        3,
        0.5,
        1e-05,
        2.5e-7,
        "adamw",
        "mine:Own",
        "true",
        "1e-4",
        "3",
        "",
        "it's",
        'a "b" $c',
        "[draft] a",
        "@type",
        "*y",
        "%x",
        "{{",
        "'",
        "a: b: c",
        "=",
        "2026-13-45",
        "!!int x",
        "it's \N{GRINNING FACE}",
        "[\N{GRINNING FACE} \u2028 \\ud83d\\ude00",
        [0.9, 0.98],
        [],
    ],
    ids=str,
)
def test_value_reaches_the_trial_unchanged(value: Any) -> None:
    written = encoded(Option(value=value))
    assert written == json.loads(json.dumps(written)), "a plain number or text"
    command = f"--set 'optimizer.options.x={written}'"
    (_, assignment) = shlex.split(command)
    found = read_assignments([assignment], "--set").tree["optimizer"]["options"]["x"]
    assert found == value
    assert type(found) is type(value)


def test_trial_reads_drawn_values() -> None:
    """Azure replaces each binding by text, whatever its type; this test does the same with one option of each."""
    sweep = resolve(**SWEEPS["random-bandit"])
    body = sweep_request(sweep.spec, plan_and_request(sweep)[1]).job["properties"]
    command = body["trial"]["command"]
    for name, (kind, numbers) in body["searchSpace"].items():
        drawn = numbers[0][1] if kind == "choice" else {"quniform": 20.0}.get(kind, 0.012)
        command = command.replace(f"${{{{search_space.{name}}}}}", str(drawn))
    assert "search_space" not in command
    words = shlex.split(command)
    sets = [
        words[place + 1] for place, word in enumerate(words) if word == "--set" and "inputs" not in words[place + 1]
    ]
    config = build(PretrainConfig, merge([read_assignments(sets, "--set")]))
    assert config.optimizer.learning_rate == 0.012
    assert config.optimizer.betas == (0.9, 0.999)
    assert config.objective.next_sentence is False
    assert config.schedule.name == "cosine"
    assert config.train.steps == 20


def test_each_trial_writes_to_its_own_folder() -> None:
    sweep = resolve(space=RATE)
    properties = sweep_request(sweep.spec, plan_and_request(sweep)[1]).job["properties"]
    assert properties["outputs"]["run"]["uri"].endswith("/orchestrator/runs/${{name}}/outputs/")
    assert properties["inputs"]["job"]["uri"].endswith("/orchestrator/runs/search-1/job/")
    assert not properties["tags"].keys() & {"orchestrator.run", "orchestrator.attempt", "orchestrator.handle"}


SPACE_OF_CHOICES: dict[str, Any] = {"train.global_batch_size": [64, 128]}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"space": RATE, "sampling": "bayesian"},
            "space.optimizer.learning_rate: Azure's bayesian sampling allows choices and plain ranges, not a "
            "logarithmic range: sampling random, or --set driver=here",
        ),
        (
            {"space": {"model.initializer_range": {"mean": 0.02, "sd": 0.001}}, "sampling": "bayesian"},
            "not a normal distribution",
        ),
        (
            {"space": {"optimizer.weight_decay": {"randint": 100_001}}, "sampling": "bayesian"},
            "Azure's bayesian sampling gets a list of the values of optimizer.weight_decay, at most 100,000",
        ),
        (
            {"space": RATE, "sampling": "tpe"},
            "sampling.name: Azure has no sampling tpe: bayesian, or --set driver=here",
        ),
        ({"space": RATE, "sampling": "gp"}, "Azure has no sampling gp"),
        (
            {"space": RATE, "early_termination": {"policy": "asha", "reduction_factor": 3}},
            "early_termination.policy: Azure has no policy asha: bandit, median or truncation, or --set driver=here",
        ),
        (
            {
                "space": {"optimizer.learning_rate": {"low": 1e-6, "high": 1e-4}},
                "sampling": "bayesian",
                "early_termination": "median",
            },
            "early_termination.policy: Azure stops no trial early with bayesian sampling",
        ),
        ({"space": RATE, "seeds": [1, 2]}, "seeds: Azure judges every run by itself"),
        ({"space": RATE, "objective": {"reduction": "last"}}, "objective.reduction: Azure takes the best"),
        ({"space": RATE, "limits": {"trials": 4, "cost": 5}}, "limits.cost: Azure has no limit of cost"),
        (
            {"space": SPACE_OF_CHOICES, "sampling": "bayesian", "warm_start": ["a"]},
            "warm_start: Azure's sampling uses no trials of other sweeps: [], or --set driver=here",
        ),
        ({"space": RATE, "keep_best": 2}, "keep_best: Azure keeps the files of every trial: all"),
        ({"space": RATE, "trials_per_gpu": 2}, "trials_per_gpu: a trial on Azure has its machines to itself"),
        ({"space": RATE, "trial": {"max_restarts": 1}}, "trial.max_restarts: Azure restarts no trial"),
        (
            {
                "space": {
                    "optimizer": [{"name": "lamb", "learning_rate": {"low": 1e-3, "high": 1e-2}}, {"name": "adamw"}]
                }
            },
            "space.optimizer: an option on Azure is a fixed value and cannot vary",
        ),
        (
            {"space": {"data.vocabulary": [__file__]}},
            "space.data.vocabulary: data.vocabulary is uploaded once",
        ),
    ],
)
def test_service_refusals_name_an_alternative(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(**sections)
    (problem,) = caught.value.problems
    assert message in problem


def test_local_driver_accepts_what_the_service_refuses() -> None:
    sections: dict[str, Any] = {
        "space": RATE,
        "sampling": "bayesian",
        "early_termination": {"policy": "asha", "reduction_factor": 3},
        "seeds": [1, 2],
        "driver": "here",
    }
    assert resolve(**sections).trial.spec.backend == "azure"
