"""model register, deploy, delete: what becomes of a run's model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

ACTIONS = ("register", "deploy", "delete")


def add_verbs(verbs: Any) -> None:
    """Adds the verb to the parser."""
    from orchestrator.cli import completers
    from orchestrator.cli.arguments import add_backend, add_output, add_verb

    parser = add_verb(
        verbs,
        "model",
        run_model,
        summary="register a run's model, answer requests with it",
        description="Register the model of a completed run with its lineage; deploy it behind an endpoint, which fills"
        " in [MASK]; delete the endpoint. On this machine: MLflow's registry, and a server on the loopback interface.",
        example="model register @last --name bert",
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    target = parser.add_argument("target", metavar="RUN|ENDPOINT", help="the run; for delete the endpoint")
    completers.attach(target, completers.runs)
    add_backend(parser)
    parser.add_argument("--name", help="the model's name (register; default: the first part of the run's)")
    parser.add_argument("--endpoint", metavar="NAME", help="what the endpoint is called (deploy)")
    sku = parser.add_argument("--sku", metavar="SIZE", help="its machine on Azure (deploy; default: Standard_DS3_v2)")
    completers.attach(sku, completers.sizes)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask (deploy on Azure, delete)")
    add_output(parser)


def run_model(arguments: argparse.Namespace) -> int:
    """One of the actions."""
    from orchestrator.cli.render import hint, print_document
    from orchestrator.client import Orchestrator
    from orchestrator.errors import UsageError

    if (arguments.action == "deploy") != (arguments.endpoint is not None):
        raise UsageError("--endpoint NAME belongs to model deploy", fix="orchestrator model --help")
    orchestrator = Orchestrator(arguments.backend)
    if arguments.action == "delete":
        _confirmed(arguments, f"delete endpoint {arguments.target}")
        orchestrator.delete_endpoint(arguments.target)
        document: dict[str, Any] = {"endpoint": arguments.target, "done": "deleted"}
        text = f"endpoint {arguments.target}: deleted"
    elif arguments.action == "register":
        document = orchestrator.attach(arguments.target).register_model(arguments.name)
        text = f"{document['name']}:{document['version']}"
    else:
        run = orchestrator.attach(arguments.target)
        if run.handle.backend == "azure":
            _confirmed(arguments, f"deploy {run.name}: the endpoint's machine costs until it is deleted")
        document = run.deploy_model(arguments.endpoint, sku=arguments.sku)
        text = str(document["uri"])
        hint(f"  delete  orchestrator model delete {arguments.endpoint} -b {run.handle.backend} -y")
    if arguments.output != "text":
        print_document(document, arguments.output)
    else:
        print(text)
    return 0


def _confirmed(arguments: argparse.Namespace, what: str) -> None:
    from orchestrator.errors import UsageError

    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"to {what} has to be confirmed", fix="the same command with -y")
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not confirmed: nothing was done", fix="the same command with -y")
