"""The commands that do a run again, made from its configuration alone: whatever file or flags it came from, they agree.

Paths are told by their own names, since the commands travel with the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from train_jobs.artifacts.layers import (
    FINETUNE_RECIPES,
    KeyPath,
    Layer,
    build,
    dotted,
    leaves,
    merge,
    preset_names,
    read_preset,
)
from train_jobs.artifacts.lineage import Attempt
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import SHAPE
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.artifacts.start_phase import ROWS
from train_jobs.config.base import Config
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.pretrain import PretrainConfig

STARTS = {INIT_FROM: "--from", PHASE_FROM: "--phase-from"}  # what training starts from, and its flag
# have a flag of their own, or shape nothing
APART: set[KeyPath] = {("data", "text"), ("data", "workers"), ("resume",), *((key,) for key in STARTS)}
BY_START: set[KeyPath] = {
    *(("model", key) for key in SHAPE),
    ("model", ROWS),
    ("data", "vocabulary"),
    ("data", "vocab_size"),
    ("data", "lowercase"),
}


def commands(config: dict[str, Any], attempt: Attempt) -> dict[str, list[str]]:
    """Words of the command of the orchestrator, and of plain torchrun.

    Args:
        config: a `PretrainConfig` as JSON has it, with names in place of paths.
        attempt: processes, nodes, threads and device.
    """
    recipe, sets = nearest_recipe(config)
    text = config["data"]["text"]
    start = next(((key, flag, config[key]) for key, flag in STARTS.items() if config.get(key)), None)
    processes = str(attempt.processes // attempt.nodes)
    device = "cpu" if attempt.device == "cpu" else "gpu"
    on_cpu = device == "cpu"
    compute = [f"compute.device={device}"]
    compute += [f"compute.threads_per_process={attempt.threads}"] if on_cpu else []
    compute += [f"compute.nodes={attempt.nodes}"] if attempt.nodes > 1 else []
    flags = [word for name in text for word in ("--data", name)]
    if any(not isinstance(source, str) for source in text):  # more is said of it than a path
        flags = ["--set", _assignment(("data", "text"), text)]
    paths = [_assignment(("data", "text"), text)] if text else []
    paths += [_assignment((start[0],), start[2])] if start else []
    return {
        "orchestrator": [
            *("orchestrator", "submit", "pretrain", "--recipe", recipe),
            *flags,
            *(start[1:] if start else ()),
            *("--processes", processes),
            *_flags("--set", [*compute, *sets]),
        ],
        "torchrun": [
            *((f"OMP_NUM_THREADS={attempt.threads}",) if on_cpu else ()),
            *("torchrun", *_nodes(attempt), "--nproc-per-node", processes),
            *("-m", "train_jobs.pretrain", "--config", recipe),
            *_flags("--set", [*paths, *sets]),
            *("--device", device, "--output", "output"),
        ],
    }


def tuning_commands(config: dict[str, Any], attempt: Attempt) -> dict[str, list[str]]:
    """The same of a fine-tuning.

    Args:
        config: a `FinetuneConfig` as JSON has it, with names in place of paths.
        attempt: processes, nodes, threads and device.
    """
    given = {"init_from": config["init_from"], "data": {"train": "train", "validation": "validation"}}
    bases = {
        name: dict(leaves(_built(FinetuneConfig, [*read_preset(name, FINETUNE_RECIPES), Layer("", given)])))
        for name in preset_names(FINETUNE_RECIPES)
    }
    told = {path: value for path, value in leaves(config) if path[0] not in {"init_from", "task", "resume", "per_task"}}
    found = {
        name: [_assignment(path, value) for path, value in told.items() if base.get(path) != value]
        for name, base in bases.items()
    }
    recipe = min(found, key=lambda name: (len(found[name]), name))
    processes, device = str(attempt.processes // attempt.nodes), "cpu" if attempt.device == "cpu" else "gpu"
    sets = found[recipe]
    return {
        "orchestrator": [
            *("orchestrator", "submit", "finetune", "--recipe", recipe, "--task", config["task"]),
            *("--model", config["init_from"], "--processes", processes),
            *_flags("--set", [f"compute.device={device}", *sets]),
        ],
        "torchrun": [
            *("torchrun", *_nodes(attempt), "--nproc-per-node", processes, "-m", "train_jobs.finetune"),
            *("--config", f"train_jobs/recipes/finetune/{recipe}.yaml"),
            *_flags("--set", [f"task={config['task']}", f"init_from={config['init_from']}", *sets]),
            *("--device", device, "--output", "output"),
        ],
    }


def nearest_recipe(config: dict[str, Any]) -> tuple[str, list[str]]:
    """The shipped recipe that differs least, and an assignment for each value that differs.

    Left out are the text and what training starts from, what the latter decides, and what shapes no result.
    """
    found = {name: _differences(config, name) for name in preset_names()}
    name = min(found, key=lambda name: (len(found[name]), name))
    return name, found[name]


def _differences(config: dict[str, Any], recipe: str) -> list[str]:
    theirs = _built(PretrainConfig, read_preset(recipe))
    left_out = APART | (BY_START if any(config.get(key) for key in STARTS) else set())
    base = dict(leaves(theirs))
    return [
        _assignment(path, value)
        for path, value in leaves(config)
        if path not in left_out and path[0] != "card" and base.get(path) != value
    ]


def _built(model: type[Config], layers: list[Layer]) -> dict[str, Any]:
    return build(model, merge(layers)).model_dump(mode="json")


def _assignment(path: KeyPath, value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True)
    return f"{dotted(path)}={text.removesuffix('...' + chr(10)).strip()}"


def _flags(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _nodes(attempt: Attempt) -> list[str]:
    if attempt.nodes == 1:
        return []
    return ["--nnodes", str(attempt.nodes), "--node-rank", "RANK", "--master-addr", "HOST", "--master-port", "29500"]
