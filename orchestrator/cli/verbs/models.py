"""model sign, verify, convert: trust in the files of a model."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from orchestrator.cli.ui.targets import attach_run
from orchestrator.cli.ui.terminal import print_document, print_result
from orchestrator.support.errors import NotFoundError
from train_jobs.artifacts.model_trust import sign_folder, verify_signature
from train_jobs.artifacts.start_model import initial_weights, is_name
from train_jobs.config import SpecError, in_shell


def sign(arguments: argparse.Namespace) -> None:
    """Sign a model, and print the path of its signature."""
    folder = _folder(arguments)
    signature = sign_folder(folder, arguments.key)
    document = {"model": str(folder), "signature": str(signature), "weights": initial_weights(folder)}
    print_result(arguments.output, document, str(signature))


def verify(arguments: argparse.Namespace) -> None:
    """Verify a model, and print its folder."""
    folder = _folder(arguments)
    verify_signature(folder, arguments.key)
    weights = initial_weights(folder)
    document = {"model": str(folder), "valid": True, "weights": weights}
    print_result(arguments.output, document, f"valid: {folder}, SHA-256 of the weights {weights}")


def convert(arguments: argparse.Namespace) -> int:
    """Convert the weights of a folder; it runs as a process of the job's code, since the orchestrator has no torch.

    Raises:
        SpecError: the folder does not exist.
    """
    if not arguments.folder.is_dir():
        raise SpecError(f"no such folder: {arguments.folder}", fix="name a model folder")
    command = [sys.executable, "-m", "train_jobs.tools.convert", "--model", str(arguments.folder)]
    if arguments.output != "text":
        command.append("--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        print_result(arguments.output, {"weights": done.stdout.strip()}, done.stdout.strip())
    elif done.stdout:
        print_document(json.loads(done.stdout), arguments.output)
    return done.returncode


def _folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of the model that a command line names.

    Raises:
        SpecError: the folder does not exist.
        NotFoundError: the run has no model on this machine.
    """
    folder = Path(arguments.name).expanduser()
    if folder.is_dir():
        return folder
    if not is_name(arguments.name, Path()):
        raise SpecError(f"no such folder: {folder}", fix="name a run or a model folder")
    run = attach_run(arguments)
    model = run.status().model
    if model is None or not Path(model).is_dir():
        raise NotFoundError(
            f"run {run.name} has no model on this machine", fix=f"orchestrator download {in_shell(run.name)} model"
        )
    return Path(model)
