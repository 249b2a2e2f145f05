"""The spec of a fine-tuning, and its short forms, which are expanded into layers of values.

task: reviews.yaml     a custom task: a file with the keys of `data`, for its files and columns
data: FOLDER           a folder with the files of the task
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import CodeSpec, JobSpec
from orchestrator.specs.names import ModuleName
from orchestrator.specs.paths import PathKeys, anchor
from orchestrator.specs.resolved import engine_rules
from orchestrator.specs.site import Rule, Site
from orchestrator.support.errors import DataError, SpecError
from train_jobs.artifacts.conversions import folder_conversion
from train_jobs.artifacts.layers import ConfigLayer, leaves, merge, read_file
from train_jobs.artifacts.model_trust import SETTING
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import TASK_RECIPE
from train_jobs.artifacts.task_files import official_files
from train_jobs.config import FinetuneConfig
from train_jobs.config.finetune import ExamplesConfig, TaskName
from train_jobs.config.tasks import OWN, SPANS, TASKS, WORDS, data_folder

TASK_FILES = (".yaml", ".yml")
RECIPE = "glue"  # recipe of the user's own tables, and of GLUE as a whole
STEMS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}  # split -> file names, without suffix, of its table in a folder
OWN_FORMS = {SPANS.folder: "json", WORDS.folder: "txt"}
"""Key of a folder of official files that may have the user's files instead -> their usual extension."""


def path_keys(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the keys of a section that hold paths."""
    return tuple(
        key
        for key, field in section.model_fields.items()
        if field.annotation is Path or Path in get_args(field.annotation)
    )


DATA_PATHS = path_keys(ExamplesConfig)


def _is_task_file(value: Any, folder: Path) -> bool:
    return isinstance(value, str) and value.endswith(TASK_FILES)


def _is_folder(value: Any, folder: Path) -> bool:
    """Return whether a dataset is a folder, rather than a name on the Hub."""
    return isinstance(value, str) and (folder / value).is_dir()


PATHS = PathKeys(
    starts=(INIT_FROM,),
    folders=(INIT_FROM,),
    files=(SETTING,),
    either=tuple(f"data.{key}" for key in DATA_PATHS),
    sometimes={"task": _is_task_file, "data": lambda value, _: bool(value), "data.dataset": _is_folder},
    nested=("per_task",),
)


def known_task(name: Any) -> str | None:
    """Return the official spelling of a task; None: it is unknown (validation reports this)."""
    try:
        return TypeAdapter[str](TaskName).validate_python(name)
    except ValidationError:
        return None


def expand_short_forms(written: Sequence[ConfigLayer], shown: Path, site: Site) -> list[ConfigLayer]:
    """Return the user's layers with short forms expanded, above a layer with the task's recipe.

    Args:
        written: the user's layers, lowest precedence first, with absolute paths.
        shown: folder that paths in messages are relative to.
        site: site of the run.

    Raises:
        SpecError: the file of a task cannot be read, or has unknown keys.
        DataError: a folder has no table for a split, or more than one.
    """
    found = merge(replace(layer, tree=_without_data(layer.tree)) for layer in written)
    named, below, above = found.tree.get("task", OWN), list[ConfigLayer](), list[ConfigLayer]()
    if isinstance(named, str) and named.endswith(TASK_FILES):
        where = str(found.origin(("task",)))
        below = [_task_layer(Path(named), shown, where)]
        named = below[0].tree["task"]
        above = [ConfigLayer(where, {"task": named})]
    task = known_task(named)
    key = data_folder(task)
    if key and (remote := dict(leaves(found.tree)).get(site.data_key)):
        below.append(ConfigLayer(str(found.origin(site.data_key)), {"data": {key: remote}}))
    recipe = ConfigLayer(f"{TASK_RECIPE}{task}", {"recipe": TASKS[task].recipe if task in TASKS else RECIPE})
    return [recipe, *below, *(_with_files(layer, task) for layer in written), *above]


def check_batch(spec: FinetuneSpec, compute: ResolvedCompute) -> None:
    """Check that the global batch divides into processes, and their shares into micro batches.

    A share that is smaller than a micro batch is processed as one micro batch.

    Raises:
        SpecError: it does not; the message names the nearest sizes that do.
    """
    train, world_size = spec.train.on_device(on_cpu=compute.device == "cpu"), compute.world_size
    asked = train.for_engine(1, 0)
    asked.model_copy(update={"micro_batch_size": "auto"}).accumulation_steps(world_size)
    if isinstance(train.micro_batch_size, int):
        micro = min(train.micro_batch_size, train.global_batch_size // world_size)
        asked.model_copy(update={"micro_batch_size": micro}).accumulation_steps(world_size)


def ignored(spec: FinetuneSpec, compute: ResolvedCompute, site: Site) -> list[Rule]:
    """Return the rules about settings that have no effect because of others."""
    rules = engine_rules(spec.optimizer, spec.schedule, compute.world_size)
    return [*rules, *((key, True, f"task is {spec.task}") for key in spec.ignored())]


def _without_data(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != "data"}


def _task_layer(path: Path, shown: Path, where: str) -> ConfigLayer:
    """Return the file of a task as a layer of the spec: its keys are those of `data`, and `task` unless it is `own`."""
    if not path.is_file():
        raise SpecError(
            f"no such file: {path}", facts={"where": f"{where}: task, which ends in .yaml and is therefore a file"}
        )
    read = read_file(path, str(path.relative_to(shown) if path.is_relative_to(shown) else path))
    tree = {key: value for key, value in read.tree.items() if key != "task"}
    if unknown := [key for key in tree if key not in ExamplesConfig.model_fields]:
        raise SpecError(
            f"invalid task file {read.source}",
            problems=[f"{read.origin((key,))}: {key}: unknown key" for key in unknown],
            facts={"known": ", ".join(["task", *ExamplesConfig.model_fields])},
        )
    lines = {key if key[0] == "task" else ("data", *key): line for key, line in read.lines.items()}
    return anchor(
        ConfigLayer(read.source, {"data": tree, "task": read.tree.get("task", OWN)}, lines), path.parent, PATHS
    )


def _with_files(layer: ConfigLayer, task: str | None) -> ConfigLayer:
    """Return the layer with the keys of `data` in place of a folder."""
    named, where = layer.tree.get("data"), layer.origin(("data",))
    if not isinstance(named, str):
        return layer
    folder, found = Path(named), dict[str, str]()
    key = data_folder(task)
    if key is not None and not _has_own_files(str(task), folder):
        found = {key: named}
    elif not folder.is_dir():
        found = {"train": named}  # reported as missing like any other path
    elif task is not None:  # an unknown task: the expected files are unknown too
        found = dict(_tables(folder, OWN_FORMS.get(key or "", "tsv")))
    lines = dict(layer.lines)
    if where.line is not None:
        lines |= dict.fromkeys((("data", key) for key in found), where.line)
    return ConfigLayer(layer.source, {**layer.tree, "data": found}, lines)


def _has_own_files(task: str, folder: Path) -> bool:
    """Return whether a path is a file, or a folder without official files, of a task that also takes the user's."""
    return data_folder(task) in OWN_FORMS and folder.exists() and not any(official_files(task, folder))


def _tables(folder: Path, form: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the path of the file of each split in a folder.

    Args:
        folder: the folder.
        form: extension of an example in the error.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for key, stems in STEMS.items():
        fitting = [path for path in files if path.stem.lower() in stems]
        if len(fitting) > 1 or (not fitting and key == "train"):
            raise DataError(
                f"{'more than one' if fitting else 'no'} file of {folder} can be data.{key}",
                facts={
                    "need": f"one file named {' or '.join(stems)}, such as {stems[0]}.{form}",
                    "have": ", ".join(path.name for path in fitting or files) or "no files",
                },
                fix=folder_conversion(folder, ()) or f"--set data.{key}=FILE",
            )
        yield from ((key, str(path)) for path in fitting)


class FinetuneCode(CodeSpec):
    """The code that fine-tunes."""

    entry: ModuleName = "train_jobs.finetune"
    """Module that every process runs; your own module receives the same arguments, and can pass them on."""


class FinetuneSpec(FinetuneConfig, JobSpec):
    """The fine-tuning of a model on a task: every key of `FinetuneConfig` at top level."""

    kind: Literal["finetune"] = "finetune"
    """Kind of the job."""
    recipe: str = "glue"
    """Recipe: glue, glue-stable, glue-roberta, squad or entities. The keys of the job override its values. Default:
    the task's."""
    code: FinetuneCode = FinetuneCode()

    @property
    def slug(self) -> str:
        """First part of the run's name, from the task."""
        return self.name or f"{self.kind}-{self.task.lower().replace('.', '-')}"

    def job_config(self) -> FinetuneConfig:
        """Return the part that the job itself reads."""
        return self.part(FinetuneConfig)
