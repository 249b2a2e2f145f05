"""submit, plan and validate of a job file of `az ml`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.backends.azure.runs.az_yaml import JobFile

SPEC_FLAGS = {
    "file": "-f",
    "sets": "--set",
    "name": "-n",
    "recipe": "--recipe",
    "data": "--data",
    "code": "--code",
    "task": "--task",
    "model": "--model",
    "store": "--store",
    "input": "--input",
    "new": "--new",
    "initial": "--from",
    "phase": "--phase-from",
    "nodes": "--nodes",
    "cluster": "--cluster",
    "sku": "--sku",
    "processes": "--processes",
    "max_restarts": "--max-restarts",
    "profile": "--profile",
    "tensorboard": "--tensorboard",
    "env": "--env",
    "tag": "--tag",
}  # say something about a job of ours; a file says all of its own


def _read(arguments: argparse.Namespace) -> JobFile:
    from orchestrator.backends.azure.runs.az_yaml import read_job_file
    from orchestrator.support.errors import UsageError

    given = [flag for name, flag in SPEC_FLAGS.items() if getattr(arguments, name, None)]
    if given:
        raise UsageError(
            f"a job file says all itself: {', '.join(given)} cannot be given", fix=f"edit {arguments.kind}"
        )
    if arguments.backend not in {None, "azure"}:
        raise UsageError("a job file of az ml goes to Azure", fix="-b azure")
    return read_job_file(Path(arguments.kind))


def show_file(arguments: argparse.Namespace) -> int:
    """Prints what would be sent."""
    from orchestrator.backends.azure.runs.az_yaml import rest_body
    from orchestrator.cli.ui.render import print_document

    file = _read(arguments)
    if arguments.verb == "validate":
        document = {"valid": True, "name": file.name}
        if arguments.output == "text":
            print(f"valid: {file.name}")
        else:
            print_document(document, arguments.output)
    elif arguments.output == "yaml":
        print_document({**file.document, "name": file.name}, "yaml")
    else:
        print_document({"name": file.name, "request": {"job": rest_body(file)}}, "json")
    return 0


def submit_file(arguments: argparse.Namespace) -> int:
    """Submits the job and follows it to its end."""
    from orchestrator.backends import remember
    from orchestrator.backends.azure.backend import AzureBackend
    from orchestrator.cli.ui.render import hint, next_commands
    from orchestrator.cli.verbs.submit import finish
    from orchestrator.run import Run
    from orchestrator.support.home import home_folder

    file = _read(arguments)
    home = home_folder(os.environ)
    backend = AzureBackend(home)
    remember(backend.name, home)  # a submission that is cut off may have made a run
    handle = backend.schedule_file(file)
    run = Run(backend, handle, created=True)
    hint(f"submitted  {handle}")
    next_commands(run.status())
    return finish(run, arguments.output, follow=not arguments.detach)
