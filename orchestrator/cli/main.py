"""`orchestrator`: the entry point.

Building the parser loads nothing but argparse, so that --help and completion are instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from orchestrator.cli.ui.terminal import forbid_colours, paint_head, terminal_of
from orchestrator.cli.verbs import (
    cluster,
    compare,
    data,
    downloads,
    inspect,
    lifecycle,
    logs,
    model,
    setup,
    submit,
    sweeps,
)
from orchestrator.support.version import __version__

EVERYWHERE = {"--debug", "--no-color"}  # flags that stand before the verb or behind it
EPILOG = """\
RUN is a handle (local://NAME), a name, the unique beginning of one, or @last.

examples:
  orchestrator submit pretrain                          the default recipe on the embedded text
  orchestrator submit pretrain --data notes/ --recipe small --set train.steps=20000
  orchestrator submit pretrain -f job.yaml --dry-run    what would be done, nothing is started
  orchestrator logs @last -f                            follow the newest run

exit codes: 0 ok, 1 or the job's own code, 2 usage or spec, 3 auth, 4 quota, capacity or budget,
            5 not found, 6 timeout, 7 service, 130 interrupt
"""


class Parser(argparse.ArgumentParser):
    """Errors in the house's form."""

    def error(self, message: str) -> NoReturn:
        """A command line that makes no sense."""
        if "_ARGCOMPLETE" in os.environ:
            sys.exit(2)  # it is only not finished yet; argcomplete goes on from here

        from orchestrator.support.errors import UsageError

        raise UsageError(message, fix=f"{self.prog} --help")


def build_parser() -> Parser:
    """All verbs."""
    parser = Parser(
        prog="orchestrator",
        description="Pretrain your own BERT, on this machine or in the cloud.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"orchestrator {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--no-color", action="store_true", help="no colours, as with the variable NO_COLOR")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for module in (
        submit,
        inspect,
        logs,
        lifecycle,
        downloads,
        data,
        compare,
        model,
        sweeps,
        cluster,
        setup,
    ):
        module.add_verbs(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what could stand here
        import argcomplete

        argcomplete.autocomplete(build_parser(), always_complete_options=False)  # answers, and ends the process
    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given
    forbid_colours("--no-color" in given)
    try:
        # also accepted behind the verb, where one adds them after something was seen
        arguments, unknown = build_parser().parse_known_args([word for word in given if word not in EVERYWHERE])
        if unknown:
            _refuse(unknown, arguments.verb)
        code = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a reader that has gone away is no error
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `orchestrator logs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:
        return _fail(problem, given, debug=debug)


def _refuse(unknown: list[str], verb: str) -> NoReturn:
    """Words that no verb knows."""
    from orchestrator.support.errors import UsageError

    raise UsageError(f"{verb} does not know: {' '.join(unknown)}", fix=f"orchestrator {verb} --help")


def _fail(problem: Exception, given: list[str], *, debug: bool) -> int:
    """Prints an error in the house's form; stdout gets it only where the user asked for JSON."""
    from orchestrator.cli.ui.render import print_document
    from orchestrator.support.errors import UserError

    stderr = terminal_of(sys.stderr)
    if debug:
        import traceback

        from orchestrator.support.redact import redact  # what Azure's SDK raises has addresses with signatures

        print(redact("".join(traceback.format_exception(problem))), end="", file=sys.stderr)
    if not isinstance(problem, UserError):
        print(paint_head(f"error[bug]: {type(problem).__name__}: {problem}", stderr), file=sys.stderr)
        print(f"  fix  report this with the output of: orchestrator --debug {' '.join(given)}", file=sys.stderr)
        return 1
    if style := _asked_style(given):
        print_document(problem.as_json(), style)
    print(paint_head(str(problem), stderr), file=sys.stderr)
    return problem.exit_code


def _asked_style(given: list[str]) -> str | None:
    """json or yaml if the command line asks for it; the parser may have been what failed."""
    for index, word in enumerate(given):
        following = given[index + 1] if index + 1 < len(given) else ""
        value = following if word in {"-o", "--output"} else word.removeprefix("--output=").removeprefix("-o")
        if value in {"json", "yaml"} and word.startswith("-"):
            return value
    return None


if __name__ == "__main__":
    sys.exit(main())
