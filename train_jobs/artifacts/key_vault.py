"""Secrets of an Azure Key Vault, read over its REST interface (GET secret, api-version 7.4). Standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import quote, urlencode

RESOURCE = "https://vault.azure.net"
"""Audience of the token that reads a secret."""
SECONDS = 30.0


class VaultError(Exception):
    """A secret that cannot be read.

    Args:
        message: without any secret.
        status: HTTP status; 0: no answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def fetch_secret(vault: str, secret: str, token: str) -> str:
    """Return the newest value of a secret.

    Args:
        vault: name of the Key Vault.
        secret: name of the secret.
        token: access token for `RESOURCE`.

    Raises:
        VaultError: the vault refused, or does not answer.
    """
    address = f"https://{vault}.vault.azure.net/secrets/{quote(secret)}?api-version=7.4"
    reason = {401: "the token was refused", 403: "the identity may not read its secrets", 404: "no such secret"}
    document = _get(address, {"Authorization": f"Bearer {token}"}, f"secret {secret} of Key Vault {vault}", reason)
    return str(document["value"])


def managed_identity_token(environ: Mapping[str, str]) -> str:
    """Return a token for `RESOURCE` of the identity that Azure ML gives a job.

    Args:
        environ: environment variables of the job: MSI_ENDPOINT, MSI_SECRET and DEFAULT_IDENTITY_CLIENT_ID, as
            azure-identity's AzureMLCredential reads them.

    Raises:
        VaultError: the job has no identity, or the endpoint refused.
    """
    if "MSI_ENDPOINT" not in environ:
        raise VaultError("the job has no managed identity: set azure.identity to managed", 0)
    query = {"resource": RESOURCE, "api-version": "2017-09-01"}
    if client := environ.get("DEFAULT_IDENTITY_CLIENT_ID"):
        query["clientid"] = client
    address, headers = f"{environ['MSI_ENDPOINT']}?{urlencode(query)}", {"secret": environ.get("MSI_SECRET", "")}
    return str(_get(address, headers, "a token of the job's managed identity", {})["access_token"])


def _get(address: str, headers: Mapping[str, str], what: str, reasons: Mapping[int, str]) -> dict[str, object]:
    request = urllib.request.Request(address, headers=dict(headers))
    try:
        # not `urlopen`, which keeps the proxies of its first call in this process
        with urllib.request.build_opener().open(request, timeout=SECONDS) as answer:
            document: dict[str, object] = json.load(answer)
            return document
    except urllib.error.HTTPError as problem:
        problem.close()
        raise VaultError(f"cannot read {what}: {reasons.get(problem.code, problem.reason)}", problem.code) from None
    except OSError as problem:
        raise VaultError(f"cannot read {what}: {getattr(problem, 'reason', problem)}", 0) from None
