"""The commands that repeat a run, derived from its configuration alone, whatever file or flags it came from.

Paths appear as bare names, since the commands travel with the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from train_jobs.artifacts.layers import (
    FINETUNE_RECIPES,
    ConfigLayer,
    KeyPath,
    build,
    continued_recipe,
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
from train_jobs.artifacts.text_rule import TextRule
from train_jobs.config import Config, FinetuneConfig, PretrainConfig
from train_jobs.config.prepare import ExecutorConfig

START_FLAGS = {INIT_FROM: "--from", PHASE_FROM: "--phase-from"}  # start of training -> its flag
# Keys that have a flag in the command, or no effect on the result: a --set for them would be redundant.
FLAG_KEYS: set[KeyPath] = {
    ("data", "text"),
    ("data", "workers"),
    *(("data", "executor", key) for key in ExecutorConfig.model_fields),
    ("resume",),
    *((key,) for key in START_FLAGS),
}
FINETUNING_FLAG_KEYS = {"init_from", "task", "resume", "per_task"}  # the same for fine-tuning
# Keys that are read from the initial model or phase, and that a config may not contradict.
KEYS_SET_BY_START: set[KeyPath] = {
    *(("model", key) for key in SHAPE),
    ("model", ROWS),
    ("data", "vocabulary"),
    ("data", "vocab_size"),
    *(("data", key) for key in TextRule._fields),
}


def commands(config: dict[str, Any], attempt: Attempt) -> dict[str, list[str]]:
    """Return the commands that repeat a pretraining run: name of the launcher -> words.

    Args:
        config: a `PretrainConfig` as JSON, with names in place of paths.
        attempt: processes, nodes, threads and device.
    """
    recipe, sets = nearest_recipe(config)
    text = config["data"]["text"]
    start = next(((key, flag, config[key]) for key, flag in START_FLAGS.items() if config.get(key)), None)
    device, launch = _launch(attempt)
    compute = [f"compute.device={device}"]
    compute += [f"compute.threads_per_process={attempt.threads}"] if device == "cpu" else []
    compute += [f"compute.nodes={attempt.nodes}"] if attempt.nodes > 1 else []
    flags = _flags("--data", text)
    if any(not isinstance(source, str) for source in text):  # a source with more than a path
        flags = ["--set", _assignment(("data", "text"), text)]
    paths = [_assignment(("data", "text"), text)] if text else []
    paths += [_assignment((start[0],), start[2])] if start else []
    return {
        "orchestrator": [
            *("orchestrator", "submit", "pretrain", "--recipe", recipe),
            *flags,
            *(start[1:] if start else ()),
            *("--processes", launch[-1]),
            *_flags("--set", [*compute, *sets]),
        ],
        "torchrun": [
            *([f"OMP_NUM_THREADS={attempt.threads}"] if device == "cpu" else []),
            *(*launch, "-m", "train_jobs.pretrain", "--config", recipe),
            *_flags("--set", [*paths, *sets]),
            *("--device", device, "--output", "output"),
        ],
    }


def finetuning_commands(config: dict[str, Any], attempt: Attempt) -> dict[str, list[str]]:
    """Return the commands that repeat a fine-tuning: name of the launcher -> words.

    Args:
        config: a `FinetuneConfig` as JSON, with names in place of paths.
        attempt: processes, nodes, threads and device.
    """
    given = {"init_from": config["init_from"], "data": {"train": "train", "validation": "validation"}}
    bases = {
        name: _values(FinetuneConfig, [*read_preset(name, FINETUNE_RECIPES), ConfigLayer("", given)])
        for name in preset_names(FINETUNE_RECIPES)
    }
    wanted = [(path, value) for path, value in leaves(config) if path[0] not in FINETUNING_FLAG_KEYS]
    recipe, sets = _nearest(bases, wanted)
    device, launch = _launch(attempt)
    return {
        "orchestrator": [
            *("orchestrator", "submit", "finetune", "--recipe", recipe, "--task", config["task"]),
            *("--model", config["init_from"], "--processes", launch[-1]),
            *_flags("--set", [f"compute.device={device}", *sets]),
        ],
        "torchrun": [
            *(*launch, "-m", "train_jobs.finetune", "--config", f"train_jobs/recipes/finetune/{recipe}.yaml"),
            *_flags("--set", [f"task={config['task']}", f"init_from={config['init_from']}", *sets]),
            *("--device", device, "--output", "output"),
        ],
    }


def nearest_recipe(config: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the shipped recipe with the fewest differences, and an assignment for each value that differs.

    Keys of the text, of the start of training and those without effect on the result are left out.

    Args:
        config: a `PretrainConfig` as JSON.
    """
    left_out = FLAG_KEYS | (KEYS_SET_BY_START if _has_start(config) else set())
    wanted = [(path, value) for path, value in leaves(config) if path not in left_out and path[0] != "card"]
    # without a start, the command of a recipe that continues another one would run both
    known = [name for name in preset_names() if _has_start(config) or continued_recipe(name) is None]
    return _nearest({name: _values(PretrainConfig, read_preset(name)) for name in known}, wanted)


def _has_start(config: dict[str, Any]) -> bool:
    return any(config.get(key) for key in START_FLAGS)


def _nearest(bases: dict[str, dict[KeyPath, Any]], wanted: list[tuple[KeyPath, Any]]) -> tuple[str, list[str]]:
    found = {
        name: [_assignment(path, value) for path, value in wanted if base.get(path) != value]
        for name, base in bases.items()
    }
    # the name breaks ties, so that the same configuration always gives the same command
    name = min(found, key=lambda name: (len(found[name]), name))
    return name, found[name]


def _values(model: type[Config], layers: list[ConfigLayer]) -> dict[KeyPath, Any]:
    return dict(leaves(build(model, merge(layers)).model_dump(mode="json")))


def _launch(attempt: Attempt) -> tuple[str, list[str]]:
    """Return the device, and the words of torchrun that start an attempt's processes."""
    nodes = ["--nnodes", str(attempt.nodes), "--node-rank", "RANK", "--master-addr", "HOST", "--master-port", "29500"]
    processes = ["--nproc-per-node", str(attempt.processes // attempt.nodes)]
    return "cpu" if attempt.device == "cpu" else "gpu", ["torchrun", *(nodes if attempt.nodes > 1 else []), *processes]


def _assignment(path: KeyPath, value: Any) -> str:
    # A width that never wraps: a line break would end the argument. YAML ends a bare scalar with "...", which is
    # removed.
    text = yaml.safe_dump(value, default_flow_style=True, width=2**20, allow_unicode=True)
    return f"{dotted(path)}={text.removesuffix('...' + chr(10)).strip()}"


def _flags(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]
