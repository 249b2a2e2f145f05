"""Run a command with secrets of Azure Key Vaults in its environment.

    python -m train_jobs.tools.with_secrets HF_TOKEN=VAULT/SECRET ... -- COMMAND...

It reads each secret with the managed identity of the job, and becomes the command: no value is in a file, on a command
line or in the job's definition.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from train_jobs.artifacts.key_vault import VaultError, fetch_secret, managed_identity_token
from train_jobs.config import UserError


def read_secrets(references: Sequence[str]) -> dict[str, str]:
    """Return the value of each `NAME=VAULT/SECRET`: name -> value.

    Raises:
        UserError: one cannot be read.
    """
    found = {}
    pairs = [reference.partition("=")[::2] for reference in references]
    try:
        token = managed_identity_token(os.environ)
        for name, place in pairs:
            vault, _, secret = place.partition("/")
            found[name] = fetch_secret(vault, secret, token)
    except VaultError as problem:
        missing = ", ".join(name for name, _ in pairs if name not in found)
        fix = "give the identity of the cluster the role Key Vault Secrets User on the vault"
        raise UserError(f"needs {missing}: {problem}", fix=fix) from None
    return found


def main(arguments: Sequence[str]) -> NoReturn:
    """Become the command after `--`; exit with 1 if a secret cannot be read."""
    end = arguments.index("--")
    try:
        values = read_secrets(arguments[:end])
    except UserError as problem:
        print(problem, file=sys.stderr, flush=True)
        sys.exit(problem.exit_code)
    os.execvpe(arguments[end + 1], list(arguments[end + 1 :]), {**os.environ, **values})


if __name__ == "__main__":
    main(sys.argv[1:])
