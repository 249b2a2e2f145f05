"""Run a command of the user's own as a job.

    python -m train_jobs.command --config job.yaml --output out

The command runs in the current folder, which contains the packaged code. ORCHESTRATOR_OUTPUTS is the folder of its
results; `python` is the Python of this process. The command inherits RANK, WORLD_SIZE and the other variables of the
launcher.

    out/metrics.jsonl    metrics, if the command writes them: a line {"step": 1, "loss": 2.5} for each report

Exit codes: the command's own; 2 if there is no such program. A command that saved its state after SIGTERM ends with 75.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from train_jobs.artifacts.layers import build, merge, read_assignments, read_file
from train_jobs.config import DataError
from train_jobs.config.command import CommandConfig
from train_jobs.engine.runtime import boundary
from train_jobs.engine.runtime.diagnostics import is_shared_process

OUTPUTS = "ORCHESTRATOR_OUTPUTS"  # variable with the folder of the command's results
CODE = "ORCHESTRATOR_CODE"  # folder of the user's code, if it is not the current one
SIGNALLED = 128  # a shell's exit code for a process that died of signal n is this plus n


def run_command(config: CommandConfig, output: Path) -> int:
    """Become the command or, in a process of the user's own, run it; return its exit code.

    Args:
        config: the command.
        output: folder of its results, which is created.

    Raises:
        DataError: the program does not exist or cannot be started.
    """
    output.mkdir(parents=True, exist_ok=True)
    python = str(Path(sys.executable).parent)
    variables = {
        **os.environ,
        OUTPUTS: str(output.absolute()),
        "PATH": os.pathsep.join([python, os.environ.get("PATH", os.defpath)]),
    }
    program, folder = config.command[0], Path(os.environ.get(CODE) or ".")
    try:
        if is_shared_process():
            return _run_below(config.command, variables, folder)
        sys.stdout.flush()
        os.chdir(folder)
        # the command gets the signals of the launcher, and its exit code is the job's
        os.execvpe(program, config.command, variables)
    except OSError as problem:
        raise DataError(
            f"cannot run {program}: {problem.strerror}", facts={"where": "command", "folder": str(folder.absolute())}
        ) from None


def _run_below(command: list[str], variables: Mapping[str, str], folder: Path) -> int:
    """Run the command as a child, with its output copied to this process's, and return its exit code."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:

        def pass_on(signum: int, frame: FrameType | None) -> None:
            process.send_signal(signum)

        before = signal.signal(signal.SIGTERM, pass_on)
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
            code = process.wait()
        finally:
            signal.signal(signal.SIGTERM, before)
    return SIGNALLED - code if code < 0 else code


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command and return its exit code."""
    arguments = boundary.job_parser("command", __doc__).parse_args(argv)
    codes: list[int] = []

    def job() -> None:
        layers = [read_file(Path(arguments.config)), read_assignments(arguments.sets, "--set")]
        codes.append(run_command(build(CommandConfig, merge(layers)), arguments.output))

    return boundary.run(job, arguments.output) or sum(codes)


if __name__ == "__main__":
    boundary.exit_process(main())
