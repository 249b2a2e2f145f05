"""Fine-tune a BERT on a task: read its rows, train, keep and export the best checkpoint.

    python -m train_jobs.finetune --config finetune.yaml --output out                      # one process
    torchrun --nproc-per-node 8 -m train_jobs.finetune --config finetune.yaml --output out # one node with 8 GPUs

The same command again resumes from the newest checkpoint in the output folder:

    out/metrics.jsonl    metrics                     out/checkpoints/   checkpoints
    out/model/           Hugging Face folder         out/predictions/   of the test sets
    out/result.json      final figures               out/scored_rows.json  rows of the scored sets, without text

With several seeds, each has its own folder, out/seed-42, and the files above summarise them: out/model is the best
model, and out/metrics.jsonl has one line per seed. Task glue has a folder per task, out/MRPC, with the same files, and
out/submission.zip for GLUE's server.

Exit codes: 0 done, 75 stopped by SIGTERM with a checkpoint committed, 130 the same by Ctrl-C (a second Ctrl-C stops
immediately), 76 hung (see the stacks), 2 invalid input, 8 this machine cannot run it, 1 any other error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from train_jobs.artifacts.layers import build, merge, read_assignments, read_overlays
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.model_trust import require_trusted
from train_jobs.artifacts.start_model import read_tuned_model
from train_jobs.config import DataError, FinetuneConfig
from train_jobs.config.tasks import GLUE, GLUE_TASKS
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.engine.reporting.system_metrics import SystemMonitor
from train_jobs.engine.runtime import boundary, distributed, storage
from train_jobs.engine.runtime.devices import require_determinism
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.readers.sentence_data import has_training_data, read_data
from train_jobs.tasks.replicates import RESULT, finished_result, run_task
from train_jobs.tasks.sentences.classification import data_identity
from train_jobs.tasks.sentences.glue import collect_predictions, glue_table, table_text, write_submission
from train_jobs.tools.mirror import MirrorThread

SUBMISSION = "submission.zip"


def finetune(config: FinetuneConfig, *, output: Path, device: str = "auto") -> dict[str, Any]:
    """Run the complete job in this process.

    Args:
        config: validated configuration.
        output: folder of the run; the main process writes to it and resumes from a checkpoint in it.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can fix.
        Preempted: SIGTERM stopped the job; a checkpoint is committed.
    """
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    if config.train.deterministic or any(one.train.deterministic for one in config.per_task.values()):
        require_determinism()
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    with SystemMonitor.of(world, output):
        if config.task == GLUE:
            result = run_glue(config, output, world=world, stop=stop)
        else:
            result = run_task(config, output, world=world, stop=stop, mirror=MirrorThread)
            world.log(f"exported {output / 'model'}")
    distributed.stop()
    return result


def run_glue(config: FinetuneConfig, output: Path, *, world: World, stop: StopRequest) -> dict[str, Any]:
    """Train all GLUE tasks that have data and are not finished; write their table and the submission.

    Args:
        config: validated configuration of task glue.
        output: folder of the run, with a folder per task.
        world: processes of the job.
        stop: request to stop the job.

    Returns:
        Table, missing tasks, submission and the results of all tasks.

    Raises:
        DataError: no task has data, or the rows of a task are invalid.
        SpecError: a task cannot start from its model, or its sequences are too long for it.
        Preempted: SIGTERM stopped the job; a checkpoint is committed.
    """
    tasks = tasks_with_data(config, world)
    # Reads all of them first, to report invalid rows or models of any task before the first one is trained.
    results = {
        name: finished_result(output / name, task, world, data_identity(read_data(task)))
        for name, task in tasks.items()
    }
    for name, task in tasks.items():
        if results[name] is None:
            require_trusted(task.init_from, task.trust)
            read_tuned_model(task, section=f"per_task.{name}." if name in config.per_task else "")
    metrics = MetricsLog(output / METRICS_FILE if world.is_main else None)
    mirror = MirrorThread(output / METRICS_FILE, config) if world.is_main else None
    with metrics.mirrored(mirror, from_step=0):
        for number, (name, task) in enumerate(tasks.items(), start=1):
            world.log(
                f"glue       {name}, {number} of {len(tasks)}{'' if results[name] is None else ': finished before'}"
            )
            results[name] = results[name] or run_task(task, output / name, world=world, stop=stop, mirror=None)
            table = glue_table({done: result for done, result in results.items() if result is not None})
            # The table is in percent for people, and metrics are fractions of 1 as those of other tasks.
            metrics.report(number, {f"validation_{cell['name']}": cell["mean"] / 100 for cell in table["cells"]})
        metrics.report(len(tasks), {"validation_glue_score": table["glue_score"] / 100})
        world.log(table_text(table))
        missing = [name for name in GLUE_TASKS if name not in tasks]
        result: dict[str, Any] = {"task": GLUE, "table": table, "missing": missing}
        if world.is_main:
            result["submission"] = submit(output)
            storage.write_json(output / RESULT, {**result, "tasks": results})
        world.barrier()
    return {**result, "tasks": results}


def tasks_with_data(config: FinetuneConfig, world: World) -> dict[str, FinetuneConfig]:
    """Return task -> configuration for the tasks that have data; warn about the others.

    Raises:
        DataError: no task has data.
    """
    tasks = {name: config.of_task(name) for name in GLUE_TASKS}
    found = {name: task for name, task in tasks.items() if has_training_data(task)}
    if not found:
        raise DataError(
            f"no task of GLUE is in {config.data.glue}",
            facts={"need": "CoLA/train.tsv, SST-2/train.tsv, ..., as its download script writes them"},
            fix="download it with orchestrator data fetch glue --to FOLDER, then give --set data.glue=FOLDER",
        )
    if missing := [name for name in tasks if name not in found]:
        world.log(f"warning: {config.data.glue} has no training data for {', '.join(missing)}: skipped")
    return found


def submit(output: Path) -> str | None:
    """Write the zip file for GLUE's server from the best seeds; return its path, or None if it is incomplete."""
    path = output / SUBMISSION
    path.unlink(missing_ok=True)
    try:
        write_submission(path, collect_predictions(output))
    except DataError as problem:
        print(f"warning: no {path.name}: {problem.message}", *(f"  {line}" for line in problem.problems), sep="\n")
        return None
    print(f"submission {path}", flush=True)
    return str(path)


def read_config(source: str, sets: list[str]) -> FinetuneConfig:
    """Read a configuration file; `a.b=c` assignments override it.

    Args:
        source: path of a YAML or JSON file.
        sets: assignments.

    Raises:
        SpecError: keys or values are invalid.
    """
    return build(FinetuneConfig, merge([*read_overlays(Path(source)), read_assignments(sets, "--set")]))


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the job and return an exit code."""
    arguments = boundary.job_parser("finetune", __doc__).parse_args(argv)

    def job() -> None:
        config = read_config(arguments.config, arguments.sets)
        finetune(config, output=arguments.output, device=arguments.device)

    return boundary.run(job, arguments.output)


if __name__ == "__main__":
    boundary.exit_process(main())
