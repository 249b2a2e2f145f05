"""Fine-tunes a BERT on a task: reads its rows, trains, keeps the best checkpoint, exports it. Reads top to bottom.

    python -m train_jobs.finetune --config finetune.yaml --output out                      # one process
    torchrun --nproc-per-node 8 -m train_jobs.finetune --config finetune.yaml --output out # one node with 8 GPUs

The same command again goes on from the newest checkpoint in the output folder:

    out/metrics.jsonl    what is reported            out/checkpoints/   what it resumes from
    out/model/           Hugging Face folder         out/predictions/   of the test sets
    out/result.json      final figures

With several seeds each has a folder of its own, out/seed-42, and the above tell of all together: out/model is the best
of them, out/metrics.jsonl has one line a seed. All of GLUE as one job has a folder for each task, out/MRPC, which is a
run of its own; out/submission.zip is for GLUE's server.

Exit codes: 0 done, 75 stopped by SIGTERM with a checkpoint committed, 130 so by Ctrl-C (a second one ends at
once), 76 hung (the stacks say where), 2 wrong input, 1 anything else.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from train_jobs.artifacts.layers import build, merge, read_assignments, read_overlays
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.config import DataError
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.tasks import GLUE, GLUE_TASKS
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.engine.runtime import boundary, determinism, distributed, storage
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.tasks.replicates import RESULT, finished, run_task
from train_jobs.tasks.sentences.glue_zip import collected, write_submission
from train_jobs.tasks.sentences.score_table import glue_table, table_text
from train_jobs.tasks.sentences.task_data import has_training_data, read_data
from train_jobs.tools.mirror import MirrorThread

SUBMISSION = "submission.zip"


def finetune(config: FinetuneConfig, *, output: Path, device: str = "auto") -> dict[str, Any]:
    """The whole job on this process.

    Args:
        config: validated configuration.
        output: folder of the run; the main process writes to it, a checkpoint in it is resumed from.
        device: "auto", "cpu" or "gpu".

    Returns:
        The final figures, as in result.json.

    Raises:
        UserError: input or environment that the user can mend.
        Preempted: SIGTERM came; a checkpoint is committed.
    """
    stop = StopRequest()
    stop.listen()
    storage.require_writable(output)
    if config.train.deterministic or any(one.train.deterministic for one in config.per_task.values()):
        determinism.demand()
    world = distributed.start(device, hang_seconds=config.watchdog.hang_seconds)
    if config.task == GLUE:
        result = run_glue(config, output, world=world, stop=stop)
    else:
        result = run_task(config, output, world=world, stop=stop, mirror=MirrorThread)
        world.say(f"exported {output / 'model'}")
    distributed.stop()
    return result


def run_glue(config: FinetuneConfig, output: Path, *, world: World, stop: StopRequest) -> dict[str, Any]:
    """All tasks of GLUE that there are data of, those that are done already left alone; their table and their zip."""
    tasks = tasks_with_data(config, world)
    results = {name: finished(output / name, task, world) for name, task in tasks.items()}
    for name, task in tasks.items():
        if results[name] is None:
            read_data(task)  # what is wrong with the last task's rows is told before the first is trained
    mirror = MirrorThread(output / METRICS_FILE, config)
    metrics = MetricsLog(output / METRICS_FILE if world.is_main else None)
    metrics.open(from_step=0)
    if world.is_main:
        mirror.start()
    ended = False
    try:
        for number, (name, task) in enumerate(tasks.items(), start=1):
            world.say(f"glue       {name}, {number} of {len(tasks)}{'' if results[name] is None else ': done before'}")
            results[name] = results[name] or run_task(task, output / name, world=world, stop=stop, mirror=None)
            table = glue_table({done: result for done, result in results.items() if result is not None})
            metrics.report(number, {f"validation_{cell['name']}": cell["mean"] for cell in table["cells"]})
        metrics.report(len(tasks), {"validation_glue_score": table["glue_score"]})
        world.say(table_text(table))
        missing = [name for name in GLUE_TASKS if name not in tasks]
        result: dict[str, Any] = {"task": GLUE, "table": table, "missing": missing}
        if world.is_main:
            result["submission"] = submit(output)
            storage.write_json(output / RESULT, {**result, "tasks": results})
        world.barrier()
        ended = True
    finally:
        metrics.close()
        if world.is_main:
            mirror.close(completed=ended)
    return {**result, "tasks": results}


def tasks_with_data(config: FinetuneConfig, world: World) -> dict[str, FinetuneConfig]:
    """Task -> its configuration; of those that have no data a warning.

    Raises:
        DataError: none has.
    """
    tasks = {name: config.of_task(name) for name in GLUE_TASKS}
    found = {name: task for name, task in tasks.items() if has_training_data(task)}
    if not found:
        raise DataError(
            f"no task of GLUE is in {config.data.glue}",
            facts={"need": "CoLA/train.tsv, SST-2/train.tsv, ..., as its download script makes them"},
            fix="--set data.glue=FOLDER, or orchestrator data fetch glue --to FOLDER",
        )
    if missing := [name for name in tasks if name not in found]:
        world.say(f"warning: {config.data.glue} has no training data of {', '.join(missing)}: left out")
    return found


def submit(output: Path) -> str | None:
    """Writes the zip for GLUE's server, of each task with the seed that is best on dev; None if it would refuse it."""
    path = output / SUBMISSION
    path.unlink(missing_ok=True)
    try:
        write_submission(path, collected(output))
    except DataError as problem:
        print(f"warning: no {path.name}: {problem.message}", *(f"  {line}" for line in problem.problems), sep="\n")
        return None
    print(f"submission {path}", flush=True)
    return str(path)


def read_config(source: str, sets: list[str]) -> FinetuneConfig:
    """Reads a file, with `a.b=c` assignments on top.

    Raises:
        SpecError: every wrong key and value.
    """
    return build(FinetuneConfig, merge([*read_overlays(Path(source)), read_assignments(sets, "--set")]))


def main(argv: list[str] | None = None) -> int:
    """Parses, runs, and turns what went wrong into words and an exit code."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="train_jobs.finetune",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="YAML or JSON file")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the run (default: ./output)")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto")
    arguments = parser.parse_args(argv)

    def job() -> None:
        config = read_config(arguments.config, arguments.sets)
        finetune(config, output=arguments.output, device=arguments.device)

    return boundary.run(job, arguments.output)


if __name__ == "__main__":
    boundary.leave(main())
