"""model register, deploy, delete: what becomes of a run's model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import (
    add_backend,
    add_group,
    add_output,
    add_run,
    add_verb,
    attached,
    orchestrator_of,
)
from orchestrator.cli.ui.terminal import hint, print_document


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    actions = add_group(
        verbs,
        "model",
        summary="register a run's model, answer requests with it",
        description="What becomes of the model of a completed run. On this machine: MLflow's registry, and a server on"
        " the loopback interface.",
        example="model register @last --name bert",
    )
    register = add_verb(
        actions,
        "register",
        run_register,
        summary="register a run's model",
        description="Register the model of a completed run, with its lineage.",
        example="model register @last --name bert",
    )
    add_run(register)
    register.add_argument(
        "--name", dest="model_name", metavar="NAME", help="the model's name (default: the first part of the run's)"
    )
    add_output(register)
    _add_endpoints(actions)


def _add_endpoints(actions: Any) -> None:
    deploy = add_verb(
        actions,
        "deploy",
        run_deploy,
        summary="answer requests with a run's model",
        description="Put the model of a completed run behind an endpoint, which fills in [MASK].",
        example="model deploy @last --endpoint bert",
    )
    add_run(deploy)
    deploy.add_argument("--endpoint", required=True, metavar="NAME", help="what the endpoint is called")
    sku = deploy.add_argument("--sku", metavar="SIZE", help="its machine on Azure (default: Standard_DS3_v2)")
    completers.attach(sku, completers.sizes)
    delete = add_verb(
        actions,
        "delete",
        run_delete,
        summary="delete an endpoint",
        description="Delete an endpoint, and with it the machine that it costs.",
        example="model delete bert",
    )
    delete.add_argument("endpoint", metavar="ENDPOINT", help="what it is called")
    add_backend(delete)
    for parser in (deploy, delete):
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
        add_output(parser)


def run_register(arguments: argparse.Namespace) -> int:
    """Registers, prints name and version."""
    document = attached(arguments).register_model(arguments.model_name)
    return _print(document, f"{document['name']}:{document['version']}", arguments.output)


def run_deploy(arguments: argparse.Namespace) -> int:
    """Deploys, prints the address."""
    run = attached(arguments)
    if not run.deploys_here:
        _confirmed(arguments, f"deploy {run.name}: the endpoint's machine costs until it is deleted")
    document = run.deploy_model(arguments.endpoint, sku=arguments.sku)
    hint(f"  delete  orchestrator model delete {arguments.endpoint} -b {run.handle.backend} -y")
    return _print(document, str(document["uri"]), arguments.output)


def run_delete(arguments: argparse.Namespace) -> int:
    """Deletes an endpoint."""
    _confirmed(arguments, f"delete endpoint {arguments.endpoint}")
    orchestrator_of(arguments).delete_endpoint(arguments.endpoint)
    document = {"endpoint": arguments.endpoint, "done": "deleted"}
    return _print(document, f"endpoint {arguments.endpoint}: deleted", arguments.output)


def _print(document: dict[str, Any], text: str, style: str) -> int:
    if style != "text":
        print_document(document, style)
    else:
        print(text)
    return 0


def _confirmed(arguments: argparse.Namespace, what: str) -> None:
    from orchestrator.support.errors import UsageError

    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"to {what} has to be confirmed", fix="the same command with -y")
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise UsageError("not confirmed: nothing was done", fix="the same command with -y")
