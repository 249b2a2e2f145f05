"""The outer edge of every job: its command line, and at its end an error, a file of it and an exit code.

Nothing here loads torch: a preparation runs without it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from train_jobs.config import InternalError, UserError
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.diagnostics import remove_error, report_error, stacks_on_request
from train_jobs.engine.runtime.stop import CTRL_C, Preempted

PREEMPTED = 75  # sysexits' EX_TEMPFAIL: the same command again resumes the job
INTERRUPTED = 130
SAVED = "a checkpoint is committed, the same command resumes from it"


def documented_parser(name: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser of a module's command line, whose help is the documentation of the module."""
    summary, _, details = (documentation or "").partition("\n\n")
    return argparse.ArgumentParser(
        prog=f"train_jobs.{name}",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def job_parser(
    name: str,
    documentation: str | None,
    *,
    recipes: Iterable[str] = (),
    needs_config: bool = True,
    device: str | None = None,
) -> argparse.ArgumentParser:
    """Return a parser with the options that all jobs share.

    Args:
        name: of the module in `train_jobs`.
        documentation: of the module.
        recipes: names that --config accepts in addition to a file.
        needs_config: whether --config is required.
        device: help text of --device.
    """
    parser = documented_parser(name, documentation)
    either = f", or one of: {', '.join(recipes)}" if recipes else ""
    parser.add_argument("--config", required=needs_config, help=f"YAML or JSON file{either}")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the run (default: ./output)")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help=device)
    return parser


def run(job: Callable[[], object], output: Path, *, kept: str = SAVED) -> int:
    """Run a job; return its exit code, after printing and storing the error if it failed.

    Args:
        job: reads its configuration and does all the work.
        output: folder of the run.
        kept: what is saved and how to resume, printed if SIGTERM or the first Ctrl-C ended the job.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        remove_error(output, rank)
        with stacks_on_request(output, rank):
            job()
    except Preempted as ending:
        print(f"stopped by {ending.by}; {ending.kept or kept}", flush=True)
        return INTERRUPTED if ending.by == CTRL_C else PREEMPTED
    except KeyboardInterrupt:  # before `StopRequest.listen`, or the second one
        print("ended by Ctrl-C; the same command resumes from what was saved before", flush=True)
        return INTERRUPTED
    except UserError as problem:
        return report_error(problem, output, rank)
    except Exception as problem:
        return report_error(_explained(problem, output, rank), output, rank)
    return 0


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    The interpreter takes a second to exit, without signal handlers: a launcher that ends the peers of a faster rank
    must not turn "saved" into "killed".
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)


def _explained(problem: Exception, output: Path, rank: int) -> UserError:
    """Return the user's error behind an exception; print its traceback unless a disk refused to be written.

    Args:
        problem: not caught by the job; call this while it is handled.
        output: folder of the run.
        rank: of this process.
    """
    if refused := storage.explain(problem, output, "the run's output"):
        return refused
    traceback.print_exc()
    found: UserError | None = None
    if "torch" in sys.modules:
        from train_jobs.engine.runtime.devices import explain_memory_error
        from train_jobs.engine.runtime.distributed import explain_lost_peer

        found = explain_memory_error(problem) or explain_lost_peer(problem, rank)
    return found or InternalError(f"{type(problem).__name__}: {problem}")
