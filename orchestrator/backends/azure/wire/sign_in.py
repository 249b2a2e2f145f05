"""Sign-in: a short chain of credentials, each tried only where it can work, and one line when none does.

ORCHESTRATOR_AZURE_SIGN_IN names one of them, which is then the only one: environment, workload-identity,
managed-identity, cli or browser. Without it those that this machine is set up for are tried in that order, never a
browser. azure-identity's own chain would list every credential it knows, on many lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orchestrator.backends.azure.wire.azure_errors import is_tls_failure, sign_in_command, tls_error
from orchestrator.support.errors import AuthError, UsageError
from orchestrator.support.redact import redact
from train_jobs.config.errors import did_you_mean

VARIABLE = "ORCHESTRATOR_AZURE_SIGN_IN"
CLI_SECONDS = 30
CREDENTIALS = {
    "environment": "EnvironmentCredential",
    "workload-identity": "WorkloadIdentityCredential",
    "managed-identity": "ManagedIdentityCredential",
    "cli": "AzureCliCredential",
    "browser": "InteractiveBrowserCredential",
}


class SignIn:
    """A credential for Azure's SDK. The credential that gives the first token also gives all later ones.

    Args:
        environ: environment variables.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._credential_names = chain(environ)
        self._chosen: Any = None
        self.credential_name: str | None = None
        """Name of the credential that gives the tokens; None: none has yet."""

    def get_token(self, *scopes: str, **more: Any) -> Any:
        """Return a token for Azure; the SDK calls this method.

        Args:
            scopes: of the token, such as https://management.azure.com/.default.
            more: options of azure-core's TokenCredential protocol, handed on.

        Raises:
            AuthError: no credential gives one; reports the reason of each.
        """
        return self._get("get_token", *scopes, **more)

    def get_token_info(self, *scopes: str, **more: Any) -> Any:
        """Return a token in the SDK's newer form.

        Raises:
            AuthError: see `get_token`.
        """
        return self._get("get_token_info", *scopes, **more)

    def _get(self, method: str, *scopes: str, **more: Any) -> Any:
        from azure.core.exceptions import ClientAuthenticationError

        failures: dict[str, Exception] = {}
        for name in self._credential_names if self.credential_name is None else [self.credential_name]:
            try:
                credential = self._chosen or _credential(name)
                token = getattr(credential, method)(*scopes, **more)
            except (ClientAuthenticationError, ValueError) as problem:
                failures[name] = problem
                if is_tls_failure(problem):
                    raise tls_error("sign-in", {"reason": _first_line(problem)}) from problem
                continue
            self._chosen, self.credential_name = credential, name
            return token
        raise AuthError(
            "not signed in to Azure",
            facts={
                "tried": "; ".join(f"{name}: {_first_line(problem)}" for name, problem in failures.items()),
                "or": f"export {VARIABLE}=browser",
            },
            fix=sign_in_command(),
        )


def chain(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the credentials to try, in order.

    Raises:
        UsageError: the variable names an unknown one.
    """
    asked = environ.get(VARIABLE)
    if asked is not None and asked not in CREDENTIALS:
        raise UsageError(
            f"unknown credential {asked!r}{did_you_mean(asked, CREDENTIALS)}",
            facts={"where": VARIABLE, "known": ", ".join(CREDENTIALS)},
            fix=f"export {VARIABLE}=cli",
        )
    # Trying a credential where it cannot work costs time: azure-identity waits seconds for the metadata service of a
    # machine in Azure on every laptop. So each is tried only where its variables are set.
    usable = {
        "environment": "AZURE_CLIENT_ID" in environ and "AZURE_TENANT_ID" in environ,
        "workload-identity": "AZURE_FEDERATED_TOKEN_FILE" in environ,
        "managed-identity": bool({"IDENTITY_ENDPOINT", "MSI_ENDPOINT"} & set(environ)),
        "cli": True,
    }
    return [asked] if asked is not None else [name for name, can_work in usable.items() if can_work]


def _credential(name: str) -> Any:
    from azure import identity

    options: dict[str, dict[str, Any]] = {
        # Azure ML gives a job the client id of its cluster's identity in the second variable
        "managed-identity": {
            "client_id": os.environ.get("AZURE_CLIENT_ID") or os.environ.get("DEFAULT_IDENTITY_CLIENT_ID")
        },
        "cli": {"process_timeout": CLI_SECONDS},
    }
    return getattr(identity, CREDENTIALS[name])(**options.get(name, {}))


def _first_line(problem: Exception) -> str:
    text = redact(str(problem).strip() or type(problem).__name__).splitlines()[0]
    return text if len(text) < 160 else text[:157] + "..."
