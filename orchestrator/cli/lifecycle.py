"""attach, wait, cancel, preempt, resume: acting on runs."""

from __future__ import annotations

import argparse
import re
from typing import Any

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
CANCEL_SECONDS = 60.0  # the job's 30 s to save, and then some


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    from orchestrator.cli.arguments import add_output, add_run

    attach = verbs.add_parser(
        "attach", help="follow a run", description="Follow a run as submit does; Ctrl-C leaves the job alone."
    )
    add_run(attach)
    add_output(attach)
    attach.set_defaults(run=run_attach)
    wait = verbs.add_parser("wait", help="until a run has ended", description="Wait; the exit code is the job's.")
    add_run(wait)
    wait.add_argument("--timeout", type=seconds, metavar="T", help="30, 90s, 10m, 2h, 1d")
    add_output(wait)
    wait.set_defaults(run=run_wait)
    cancel = verbs.add_parser(
        "cancel", help="end runs", description="End runs. Each saves a checkpoint first and can be resumed."
    )
    add_run(cancel, many=True)
    cancel.add_argument("--no-wait", action="store_true", help="ask, and do not wait until they have ended")
    add_output(cancel)
    cancel.set_defaults(run=run_cancel)
    preempt = verbs.add_parser(
        "preempt",
        help="simulate a preemption",
        description="Take the machine away, as a cloud does with a low-priority node: the job saves and stops, and is"
        " started again if it was submitted with --max-restarts.",
    )
    add_run(preempt)
    preempt.set_defaults(run=run_preempt)
    resume = verbs.add_parser("resume", help="go on with a run", description="Go on from the newest checkpoint.")
    add_run(resume)
    resume.add_argument("-d", "--detach", action="store_true", help="return once the run is started")
    add_output(resume)
    resume.set_defaults(run=run_resume)


def seconds(text: str) -> float:
    """`90`, `90s`, `10m`, `2h`, `1d` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"not a time: {text} (30, 90s, 10m, 2h, 1d)")
    return float(match[1]) * UNITS[match[2]]


def run_attach(arguments: argparse.Namespace) -> int:
    """Follows a run to its end; the exit code is the job's."""
    from orchestrator.cli.submit import finish
    from orchestrator.client import Orchestrator

    return finish(Orchestrator().attach(arguments.name), arguments.output, follow=True)


def run_wait(arguments: argparse.Namespace) -> int:
    """Waits, prints how the run ended."""
    from orchestrator.cli.follow import leaving_alone
    from orchestrator.cli.submit import finish
    from orchestrator.client import Orchestrator

    run = Orchestrator().attach(arguments.name)
    with leaving_alone(run):
        run.wait(arguments.timeout)
    return finish(run, arguments.output, follow=False)


def run_cancel(arguments: argparse.Namespace) -> int:
    """Ends runs, prints how they stand."""
    from orchestrator.cli.render import hint, print_document
    from orchestrator.client import Orchestrator

    orchestrator = Orchestrator()
    runs = [orchestrator.attach(name) for name in arguments.name]
    for run in runs:
        run.cancel()
    statuses = [run.status() if arguments.no_wait else run.wait(CANCEL_SECONDS) for run in runs]
    if arguments.output != "text":
        print_document([status.as_dict() for status in statuses], arguments.output)
        return 0
    for status in statuses:
        print(f"{status.state.value}  {status.handle}")
        if status.state.resumable:
            hint(f"  resume  orchestrator resume {status.name}")
    return 0


def run_preempt(arguments: argparse.Namespace) -> int:
    """Asks the job to stop as a preemption does."""
    from orchestrator.client import Orchestrator

    run = Orchestrator().attach(arguments.name)
    run.preempt()
    print(run.handle)
    return 0


def run_resume(arguments: argparse.Namespace) -> int:
    """Starts a run again and follows it."""
    from orchestrator.cli.render import hint, next_commands
    from orchestrator.cli.submit import finish
    from orchestrator.client import Orchestrator

    run = Orchestrator().attach(arguments.name)
    run.resume()
    hint(f"resumed  {run.handle}")
    next_commands(run.status())
    return finish(run, arguments.output, follow=not arguments.detach)
