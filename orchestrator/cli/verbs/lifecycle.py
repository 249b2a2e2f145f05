"""attach, wait, supervise, cancel, preempt, resume: acting on runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from orchestrator.cli.ui.arguments import add_output, add_run, add_verb, attached, orchestrator_of, seconds
from orchestrator.cli.ui.terminal import hint, print_document, print_result

if TYPE_CHECKING:
    from orchestrator.run import Run
    from orchestrator.sweep import Sweep

CANCEL_SECONDS = 60.0  # the job's 30 s to save, and then some


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    attach = add_verb(
        verbs,
        "attach",
        run_attach,
        summary="follow a run or a sweep",
        description="Follow a run or a sweep as submit does; Ctrl-C leaves it alone.",
        example="attach @last",
    )
    add_run(attach, sweep=True)
    add_output(attach)
    wait = add_verb(
        verbs,
        "wait",
        run_wait,
        summary="wait until a run or a sweep has ended",
        description="Wait until a run or a sweep has ended. The exit code is the job's; of a sweep 0 if it completed.",
        example="wait @last --timeout 2h",
    )
    add_run(wait, sweep=True)
    wait.add_argument("--timeout", type=seconds, metavar="T", help="30, 90s, 10m, 2h, 1d")
    add_output(wait)
    supervise = add_verb(
        verbs,
        "supervise",
        run_supervise,
        summary="restart a run when it fails or is preempted",
        description="Watch a run on Azure, and submit it again whenever it was preempted or failed, at most"
        " --max-restarts times. Following a run does the same; runs on this machine have a supervisor that does.",
        example="supervise azure://WORKSPACE/RUN",
    )
    add_run(supervise)
    supervise.add_argument("--max-restarts", type=_restarts, metavar="N", help="from now on (default: as submitted)")
    add_output(supervise)
    _add_endings(verbs)


def _add_endings(verbs: Any) -> None:
    """Add the verbs that end runs, and that start them again."""
    cancel = add_verb(
        verbs,
        "cancel",
        run_cancel,
        summary="end runs and sweeps",
        description="End runs and sweeps. Each run, and each trial that goes on, saves a checkpoint first and can be"
        " resumed.",
        example="cancel @last",
    )
    add_run(cancel, count="+", sweep=True)
    cancel.add_argument("--no-wait", action="store_true", help="ask, and do not wait until they have ended")
    add_output(cancel)
    preempt = add_verb(
        verbs,
        "preempt",
        run_preempt,
        summary="simulate a preemption",
        description="Take the machine away, as a cloud does with a low-priority node: the job saves and stops, and is"
        " started again if it was submitted with --max-restarts.",
        example="preempt @last",
    )
    add_run(preempt)
    add_output(preempt)
    resume = add_verb(
        verbs,
        "resume",
        run_resume,
        summary="resume a run or a sweep",
        description="Resume from the newest checkpoint. With another number of processes the global batch, the order of"
        " examples and the schedule stay the same; the result is not the same bit for bit. A sweep resumes with the"
        " trials that are left.",
        example="resume @last --processes 6",
    )
    add_run(resume, sweep=True)
    resume.add_argument(
        "--processes", type=int, metavar="N", help="processes on each node from now on (default: as before)"
    )
    resume.add_argument("-d", "--detach", action="store_true", help="return once the run is started")
    add_output(resume)


def _named(arguments: argparse.Namespace) -> Run | Sweep:
    from orchestrator.cli.ui.named import named

    return named(orchestrator_of(arguments), arguments.name)


def run_attach(arguments: argparse.Namespace) -> int:
    """Follows a run to its end; the exit code is the job's."""
    from orchestrator.cli.ui.follow import finish
    from orchestrator.run import Run

    found = _named(arguments)
    if not isinstance(found, Run):
        from orchestrator.cli.verbs.sweeps import follow_sweep

        return follow_sweep(found, arguments)
    return finish(found, arguments.output, follow=True)


def run_wait(arguments: argparse.Namespace) -> int:
    """Waits, prints how the run ended."""
    from orchestrator.cli.ui.follow import finish, leaving_alone
    from orchestrator.run import Run

    run = _named(arguments)
    if not isinstance(run, Run):
        from orchestrator.cli.verbs.sweeps import wait_for_sweep

        return wait_for_sweep(run, arguments)
    with leaving_alone(run):
        run.wait(arguments.timeout)
    return finish(run, arguments.output, follow=False)


def _restarts(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of restarts: {text}")
    return int(text)


def run_supervise(arguments: argparse.Namespace) -> int:
    """Waits as `wait` does, and tells of each attempt."""
    from orchestrator.cli.ui.follow import finish, leaving_alone

    run = attached(arguments)
    with leaving_alone(run):
        run.wait(max_restarts=arguments.max_restarts)
    return finish(run, arguments.output, follow=False)


def run_cancel(arguments: argparse.Namespace) -> int:
    """Ends runs, prints how they stand."""
    from orchestrator.cli.ui.named import named
    from orchestrator.run import Run
    from orchestrator.runs.status import RunState

    orchestrator = orchestrator_of(arguments)
    found = [named(orchestrator, name) for name in dict.fromkeys(arguments.name)]
    sweeps = [one for one in found if not isinstance(one, Run)]
    runs = [one for one in found if isinstance(one, Run)]
    ended: list[dict[str, Any]] = []
    if sweeps:
        from orchestrator.cli.verbs.sweeps import cancel_sweeps

        ended = cancel_sweeps(sweeps, wait=not arguments.no_wait)
    for run in runs:
        run.cancel()
    statuses = [run.status() if arguments.no_wait else run.wait(CANCEL_SECONDS) for run in runs]
    if arguments.output != "text":
        print_document([*ended, *(status.as_dict() for status in statuses)], arguments.output)
        return 0
    for one, sweep in zip(ended, sweeps, strict=True):
        print(f"{one['state']}  {one['name']}")
        if RunState(one["state"]).resumable:
            hint(f"  resume  {sweep.way_on()}")
    for status in statuses:
        print(f"{status.state.value}  {status.handle}")
        if status.state.resumable:
            hint(f"  resume  orchestrator resume {status.name}")
    return 0


def run_preempt(arguments: argparse.Namespace) -> int:
    """Asks the job to stop as a preemption does."""
    run = attached(arguments)
    run.preempt()
    print_result(arguments.output, {"handle": str(run.handle)}, lambda: run.handle)
    return 0


def run_resume(arguments: argparse.Namespace) -> int:
    """Starts a run again and follows it."""
    from orchestrator.cli.ui.follow import finish
    from orchestrator.cli.ui.render import next_commands
    from orchestrator.run import Run

    run = _named(arguments)
    if not isinstance(run, Run):
        from orchestrator.cli.verbs.sweeps import resume_sweep

        return resume_sweep(run, arguments)
    run.resume(processes=arguments.processes)
    hint(f"resumed  {run.handle}")
    next_commands(run.status())
    return finish(run, arguments.output, follow=not arguments.detach)
