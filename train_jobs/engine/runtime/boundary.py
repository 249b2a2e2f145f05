"""Entry and exit of every job: its command line, and at its end the error, the error file and the exit code.

Nothing here loads torch: a preparation runs without it.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from train_jobs.artifacts.process_limits import explain_limit
from train_jobs.config import InternalError, TrustConfig, UserError
from train_jobs.config.privacy import traceback_text, unexpected_text
from train_jobs.engine.runtime import storage
from train_jobs.engine.runtime.diagnostics import is_shared_process, remove_error, report_error, stacks_on_request
from train_jobs.engine.runtime.stop import CTRL_C, Preempted

PREEMPTED = 75  # sysexits' EX_TEMPFAIL: the same command again resumes the job
INTERRUPTED = 130
SAVED = "a checkpoint is committed, the same command resumes from it"


def documented_parser(name: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of a module.

    Args:
        name: name of the module in `train_jobs`.
        documentation: docstring of the module; its first paragraph is the summary.
    """
    summary, _, details = (documentation or "").partition("\n\n")
    return argparse.ArgumentParser(
        prog=f"train_jobs.{name}",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options of `TrustConfig`, for tools that load a model without a configuration."""
    parser.add_argument("--allow-pickle", action="store_true", help="load pytorch_model.bin, a pickle")
    parser.add_argument("--require-signature", type=Path, metavar="KEY", help="public key that must have signed it")


def trust_of(arguments: argparse.Namespace) -> TrustConfig:
    """Return the values of the options of `add_trust`."""
    return TrustConfig(allow_pickle=arguments.allow_pickle, require_signature=arguments.require_signature)


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
        name: name of the module in `train_jobs`.
        documentation: docstring of the module.
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


def run(job: Callable[[], object], output: Path, *, resume_hint: str = SAVED) -> int:
    """Run a job; if it fails, print the error and write its file.

    Args:
        job: function that reads the configuration and does all the work.
        output: output folder of the run.
        resume_hint: what is saved and how to resume, printed if SIGTERM or the first Ctrl-C stopped the job.

    Returns:
        The exit code: 0, 75 after SIGTERM, 130 after Ctrl-C, or that of the error.
    """
    # From the environment, not from a process group: a job may fail before it joins one.
    rank = int(os.environ.get("RANK", "0"))
    try:
        remove_error(output, rank)
        with stacks_on_request(output, rank):
            job()
    except Preempted as ending:
        print(f"stopped by {ending.by}; {ending.resume_hint or resume_hint}", flush=True)
        return INTERRUPTED if ending.by == CTRL_C else PREEMPTED
    except KeyboardInterrupt:  # before `StopRequest.listen`, or at the second Ctrl-C
        print("stopped by Ctrl-C; the same command resumes from the last saved state", flush=True)
        return INTERRUPTED
    except UserError as problem:
        return _failed(problem, output, rank)
    except Exception as problem:
        return _failed(_explained(problem, output, rank), output, rank)
    return 0


def _failed(problem: UserError, output: Path, rank: int) -> int:
    """Report an error, leave the process group and return the exit code."""
    code = report_error(problem, output, rank)
    if "torch" in sys.modules:
        from train_jobs.engine.runtime.distributed import abandon

        abandon()
    return code


def exit_process(code: int) -> NoReturn:
    """End the process, or the job in a process of the user's own, with this exit code; SIGTERM is ignored."""
    # torchrun sends SIGTERM to the other ranks once the first has exited, and would turn their exit code 75, "saved",
    # into "killed by a signal".
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if is_shared_process():
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or a disk without space
            stream.flush()
    # Not sys.exit: while the interpreter is torn down, a daemon thread that returns from C++, such as one in a store of
    # torch.distributed, aborts the process ("terminate called without an active exception", exit code -6).
    os._exit(code)


def _explained(problem: Exception, output: Path, rank: int) -> UserError:
    """Return the error to report for an exception; print its traceback unless it came from a disk or a lost peer.

    Args:
        problem: exception that the job did not catch; call this in its except clause.
        output: output folder of the run.
        rank: rank of this process.

    Returns:
        StorageError, MachineError, OutOfMemoryError, PeerError or, for any other exception, InternalError.
    """
    if refused := storage.explain(problem, output, "the run's output"):
        return refused
    found: UserError | None = None
    if "torch" in sys.modules:  # importing it now would take seconds, and a job without it cannot have these errors
        from train_jobs.engine.runtime.devices import explain_memory_error
        from train_jobs.engine.runtime.distributed import explain_lost_peer

        if lost := explain_lost_peer(problem, rank):
            return lost  # a rank that only waited does not know why the other rank ended
        found = explain_memory_error(problem)
    found = explain_limit(problem) or found
    with suppress(OSError):  # the log may be on a full disk
        print(traceback_text(problem), file=sys.stderr, flush=True)
    return found or InternalError(unexpected_text(problem))
