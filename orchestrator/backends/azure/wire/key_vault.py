"""Read a secret of an Azure Key Vault with the identity of this machine's user."""

from __future__ import annotations

import os

from orchestrator.backends.azure.wire.sign_in import SignIn
from orchestrator.support.errors import AuthError, NotFoundError, ServiceError
from train_jobs.artifacts.key_vault import RESOURCE, VaultError, fetch_secret


def read_secret(vault: str, secret: str) -> str:
    """Return the newest value of a secret.

    Args:
        vault: name of the Key Vault.
        secret: name of the secret.

    Raises:
        AuthError: not signed in, or the identity may not read secrets.
        NotFoundError: there is no such secret.
        ServiceError: the vault does not answer.
    """
    token = SignIn(os.environ).get_token(f"{RESOURCE}/.default").token
    try:
        return fetch_secret(vault, secret, token)
    except VaultError as problem:
        fix = f"az keyvault secret show --vault-name {vault} --name {secret} --query id"
        kinds = {401: AuthError, 403: AuthError, 404: NotFoundError}
        raise kinds.get(problem.status, ServiceError)(str(problem), fix=fix) from None
