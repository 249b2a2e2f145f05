"""attach, wait, supervise, cancel, preempt, resume: follow and control runs."""

from __future__ import annotations

import argparse
import sys
import time

from orchestrator.cli.ui import follow
from orchestrator.cli.ui.render import next_commands
from orchestrator.cli.ui.sweep_view import detach_on_interrupt, finish
from orchestrator.cli.ui.targets import attach_run, find_target
from orchestrator.cli.ui.terminal import hint, print_document, print_result, write_line
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.sweep import Sweep

CANCEL_SECONDS = 60.0  # a job has 30 s to save a checkpoint; the rest is a margin
CANCEL_SWEEP_SECONDS = 120.0  # for trials that save a checkpoint each


def _target(arguments: argparse.Namespace) -> Run | Sweep:
    return find_target(Orchestrator(arguments.backend), arguments.name)


def attach(arguments: argparse.Namespace) -> int:
    """Follow a run or a sweep to its end; the exit code is the job's."""
    return finish(_target(arguments), arguments.output, followed=True)


def wait(arguments: argparse.Namespace) -> int:
    """Wait until the run or the sweep has finished, and print its status."""
    found = _target(arguments)
    with detach_on_interrupt(found):
        found.wait(arguments.timeout)
    return finish(found, arguments.output, followed=False)


def supervise(arguments: argparse.Namespace) -> int:
    """Wait like `wait`, and restart the run when it fails or is preempted."""
    run = attach_run(arguments)
    with detach_on_interrupt(run):
        run.wait(max_restarts=arguments.max_restarts, max_preemptions=arguments.max_preemptions)
    return follow.finish(run, arguments.output, follow=False)


def cancel(arguments: argparse.Namespace) -> None:
    """Cancel runs and sweeps, and print their states."""
    orchestrator = Orchestrator(arguments.backend)
    found = [find_target(orchestrator, name) for name in dict.fromkeys(arguments.name)]
    sweeps = [one for one in found if isinstance(one, Sweep)]
    runs = [one for one in found if isinstance(one, Run)]
    for one in found:  # all are cancelled before any is waited for, so that they save their checkpoints together
        one.cancel()
    until = time.monotonic() + CANCEL_SWEEP_SECONDS
    while not arguments.no_wait and time.monotonic() < until and any(not one.state().terminal for one in sweeps):
        time.sleep(min(sweep.poll_seconds for sweep in sweeps))
    statuses = [run.status() if arguments.no_wait else run.wait(CANCEL_SECONDS) for run in runs]
    ended = [sweep.status() for sweep in sweeps]
    if arguments.output != "text":
        documents = [status.model_dump(mode="json", exclude={"rows"}) for status in ended]
        print_document([*documents, *(status.as_dict() for status in statuses)], arguments.output)
        return
    lines = [(status.state, status.name, sweep.resume_command()) for status, sweep in zip(ended, sweeps, strict=True)]
    lines += [(status.state, status.handle, f"orchestrator resume {status.name}") for status in statuses]
    for status in ended:
        if status.reason and not status.state.terminal:  # the service may not have it yet, or does not answer
            hint(f"{status.name}: {status.reason}")
    for state, name, resume_command in lines:
        write_line(f"{state.value}  {name}", sys.stdout)
        if state.resumable:
            hint(f"  resume  {resume_command}")


def preempt(arguments: argparse.Namespace) -> None:
    """Simulate a preemption."""
    run = attach_run(arguments)
    run.preempt()
    print_result(arguments.output, {"handle": str(run.handle)}, run.handle)


def resume(arguments: argparse.Namespace) -> int:
    """Resume a run or a sweep, and follow it."""
    found = _target(arguments)
    if isinstance(found, Sweep):
        if arguments.processes is not None:
            hint("warning: --processes has no effect: a sweep resumes as it was submitted")
        found.resume()
        hint(f"resumed  {found.name}")
    else:
        found.resume(processes=arguments.processes)
        hint(f"resumed  {found.handle}")
        next_commands(found.status())
    return finish(found, arguments.output, followed=not arguments.detach)
