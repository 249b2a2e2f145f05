"""`orchestrator`: the entry point.

Building the parser imports only argparse, so --help and completion are instant.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.cli.job_commands import START
from orchestrator.cli.resource_commands import CLOUD, DATA
from orchestrator.cli.run_commands import MANAGE, WATCH
from orchestrator.cli.ui.terminal import aligned, forbid_colours, paint_head, print_document, terminal_of, write_line
from orchestrator.support.home import run_as_command
from orchestrator.support.version import __version__

if TYPE_CHECKING:
    from orchestrator.support.errors import UserError

SECTIONS = {"start": START, "watch": WATCH, "manage": MANAGE, "data": DATA, "cloud": CLOUD}
OUTPUT_ENCODING = "PYTHONIOENCODING"  # of Python, for what a process prints
EVERYWHERE = {"--debug", "--no-color"}  # flags that may come before or after the verb
OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # of a file or a terminal that takes no more
SHOWN_NAME = 60  # characters of a name that is too long
SUMMARY = "Pretrain, fine-tune and apply BERT models on this machine or on Azure ML."
EPILOG = """\
RUN is a handle (local://NAME), a name, a unique prefix of a name, or @last.

examples:
  orchestrator submit pretrain                          the default recipe on the embedded text
  orchestrator submit pretrain --data notes/ --recipe small --set train.steps=20000
  orchestrator submit pretrain -f job.yaml --dry-run    show the plan without submitting
  orchestrator logs @last -f                            follow the newest run

exit codes: 0 ok, 1 or the job's own code, 2 usage or spec, 3 auth, 4 quota, capacity or budget,
            5 not found, 6 timeout, 7 service, 8 this machine cannot run it, 130 interrupt
"""


class Parser(argparse.ArgumentParser):
    """A parser that raises the project's errors in place of argparse's own."""

    def error(self, message: str) -> NoReturn:
        """Raise an error for an invalid command line.

        Raises:
            UsageError: always, except during completion.
        """
        if "_ARGCOMPLETE" in os.environ:
            sys.exit(2)  # the line is incomplete, not wrong: argcomplete catches the exit and completes it

        from orchestrator.cli.ui.hints import usage_error

        raise usage_error(message, self.prog)


def build_parser(verb: str = "") -> Parser:
    """Return the parser of all verbs.

    Args:
        verb: build the parser of this verb alone, in a twentieth of the time; a word that is not one builds all.
    """
    parser = Parser(
        prog="orchestrator",
        description=SUMMARY,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"orchestrator {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--no-color", action="store_true", help="no colours, as with the environment variable NO_COLOR")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True, parser_class=Parser)
    commands = [command for section in SECTIONS.values() for command in section]
    for command in [one for one in commands if one.name == verb] or commands:
        command.add_to(verbs)
    return parser


def overview() -> str:
    """Return the overview of commands by section that a bare `orchestrator` prints."""
    lines = [SUMMARY, "", "usage: orchestrator VERB ..."]
    for section, commands in SECTIONS.items():
        lines += ["", section, *aligned([(f"{command.name:<10}", command.summary) for command in commands])]
    return "\n".join([*lines, "", "help of a verb: orchestrator VERB --help", "all options:    orchestrator --help"])


class _Messages(io.FileIO):
    """A stderr without need of a reader: after its reader has left, messages go to /dev/null."""

    def write(self, data: Any) -> int:
        """Write bytes."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def _open_streams() -> None:
    """Open the standard streams that the caller closed (`>&-`), on /dev/null, and let only stdout need a reader.

    Else the next file that is opened gets the number of stdout, and what a child process prints goes into that file.
    `submit 2>&1 | head -1` would end at its second message, before it submits.
    """
    if sys.stderr is not None:
        messages = io.BufferedWriter(_Messages(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(messages, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123, it gets the lowest free number
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _use_utf8() -> None:
    """Start this command again in Python's UTF-8 mode (PEP 540) if the locale has another encoding.

    Texts, names of labels and the files of runs have any characters. What is printed stays in the terminal's encoding.
    """
    if sys.getfilesystemencoding() != "utf-8":
        printed = {OUTPUT_ENCODING: f"{sys.stdout.encoding}:backslashreplace"}
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]  # the variable is for jobs, and python -I ignores it
        os.execve(sys.executable, again, {**os.environ, **printed, "PYTHONUTF8": "1"})
    os.environ.pop(OUTPUT_ENCODING, None)  # the logs of jobs are in UTF-8


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        from orchestrator.cli.ui.completion_finder import DistinctCompletions

        DistinctCompletions()(build_parser(), always_complete_options=False)  # prints them and exits
    if argv is None:
        _open_streams()
        _use_utf8()
    given = list(sys.argv[1:] if argv is None else argv)
    # Removed here and not declared on each verb: argparse would reset a value that was given before the verb.
    end = given.index("--") if "--" in given else len(given)
    words = [word for word in given[:end] if word not in EVERYWHERE]
    forbid_colours("--no-color" in given[:end])
    run_as_command()
    # pydantic would look for its plugins in the metadata of every installed package: a fifth of the time of `status`.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # jsonschema, which Azure's SDK imports, imports this if Jupyter has installed it: half of the SDK's import time, to
    # compile a grammar for a check that nothing here uses.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    try:
        if not words:
            write_line(overview(), sys.stdout)
            sys.stdout.flush()
            return 0
        parser = build_parser(words[0])
        arguments, unknown = parser.parse_known_args(words)
        arguments.words = given[end + 1 :]
        if arguments.words and not hasattr(arguments, "sets"):
            unknown = ["--", *arguments.words]
        if unknown:
            from orchestrator.cli.ui.hints import flags_of_parser, unknown_arguments

            raise unknown_arguments(arguments.verb, unknown, given, flags_of_parser(parser, arguments.verb))
        if getattr(arguments, "show_values", False):
            from train_jobs.config.privacy import SHOW_VALUES

            os.environ[SHOW_VALUES] = "1"  # also for errors of the plan, which reads data in this process
        module, _, function = arguments.handler.partition(".")
        code = getattr(import_module(f"orchestrator.cli.verbs.{module}"), function)(arguments)
        sys.stdout.flush()  # inside the try: at interpreter exit, a closed pipe would print an error message
        return code or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `orchestrator logs | head`
        _discard_output()
        return 0
    except Exception as problem:
        return _fail(problem, given, debug="--debug" in given[:end])


def _fail(problem: Exception, given: list[str], *, debug: bool) -> int:
    """Print an error on stderr, and on stdout if the user asked for JSON or YAML; return its exit code."""
    from orchestrator.support.errors import DataError, SpecError, UserError
    from orchestrator.support.redact import redact  # errors of Azure's SDK contain addresses with signatures
    from train_jobs.config.privacy import traceback_text, unexpected_text

    stderr = terminal_of(sys.stderr)
    if debug:
        write_line(redact(traceback_text(problem)).rstrip("\n"), sys.stderr)
    problem = _known_error(problem) or problem
    if not isinstance(problem, UserError):
        write_line(paint_head(redact(f"error[bug]: {unexpected_text(problem)}"), stderr), sys.stderr)
        command = redact(f"orchestrator --debug {shlex.join(given)}")
        write_line(f"  fix  report this with the output of: {command}", sys.stderr)
        return 1
    problem.message, problem.fix = redact(problem.message), problem.fix and redact(problem.fix)
    problem.facts = {redact(label): redact(str(value)) for label, value in problem.facts.items()}
    if isinstance(problem, SpecError | DataError):
        problem.problems = list(map(redact, problem.problems))
    if style := _requested_style(given):
        print_document(problem.as_json(), style)
    write_line(paint_head(str(problem), stderr), sys.stderr)
    return problem.exit_code


def _known_error(problem: Exception) -> UserError | None:
    """Return the error of the user's that an error of the operating system is; None: it may be any other."""
    from orchestrator.support.errors import StorageError, UsageError

    # an error of ours may have it as its cause: to a relative path, the missing folder is any other missing file
    if (isinstance(problem, OSError) or isinstance(problem.__cause__, FileNotFoundError)) and _folder_is_gone():
        return UsageError("the current folder no longer exists", fix="cd to a folder that exists")
    if not isinstance(problem, OSError):
        return None
    if problem.errno == errno.ENAMETOOLONG:
        begin = str(problem.filename or "")[:SHOWN_NAME]
        return UsageError(f"the name {begin}... is too long for a file", fix="give the path of a file, not its text")
    if problem.errno not in OUTPUT_ERRORS or problem.filename is not None:
        return None
    try:
        print(flush=True)  # Python names no file in an error of stdout, but a second attempt fails too
    except OSError as refused:
        _discard_output()
        fix = "free some space, or write to another place"
        return StorageError("cannot write the standard output", facts={"reason": refused.strerror}, fix=fix)
    return None


def _discard_output() -> None:
    """Let Python's flush of stdout at exit succeed; without a valid target it would fail and print a message."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _folder_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109, for its error alone
    except OSError:
        return True
    return False


def _requested_style(given: list[str]) -> str | None:
    """Return json or yaml if the command line requests it; does not use the parser, which may be what failed."""
    for index, word in enumerate(given):
        following = given[index + 1] if index + 1 < len(given) else ""
        value = following if word in {"-o", "--output"} else word.removeprefix("--output=").removeprefix("-o")
        if value in {"json", "yaml"} and word.startswith("-"):
            return value
    return None


if __name__ == "__main__":
    sys.exit(main())
