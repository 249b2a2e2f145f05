"""Signing in: a short chain whose links are tried only where there is something to try, and one line when none works.

ORCHESTRATOR_AZURE_SIGN_IN names one link, which is then the only one: environment, workload-identity, managed-identity,
cli or browser. Without it the first that this machine is set up for counts, a browser never unasked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.support.errors import AuthError, UsageError
from orchestrator.support.redact import redact

VARIABLE = "ORCHESTRATOR_AZURE_SIGN_IN"
CLI_SECONDS = 30


class SignIn:
    """A credential as Azure's SDK wants one. Whichever link gave a token first gives the later ones too.

    Args:
        environ: environment variables.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._links = chain(environ)
        self._found: Any = None
        self.link: str | None = None
        """Which link gave the tokens; None: none has yet."""

    def get_token(self, *scopes: str, **more: Any) -> Any:
        """A token for Azure.

        Raises:
            AuthError: no link gives one; tells of each why.
        """
        return self._ask("get_token", *scopes, **more)

    def get_token_info(self, *scopes: str, **more: Any) -> Any:
        """The same in the SDK's newer form.

        Raises:
            AuthError: as of `get_token`.
        """
        return self._ask("get_token_info", *scopes, **more)

    def _ask(self, method: str, *scopes: str, **more: Any) -> Any:
        from azure.core.exceptions import ClientAuthenticationError

        if self._found is not None:
            try:
                return getattr(self._found, method)(*scopes, **more)
            except ClientAuthenticationError as problem:
                raise _refused({"signed in until now": problem}) from problem
        failures: dict[str, Exception] = {}
        for name, make in self._links.items():
            try:
                credential = make()
                token = getattr(credential, method)(*scopes, **more)
            except (ClientAuthenticationError, ValueError) as problem:
                failures[name] = problem
                continue
            self._found, self.link = credential, name
            return token
        raise _refused(failures)


def chain(environ: Mapping[str, str]) -> dict[str, Callable[[], Any]]:
    """The links that are tried, in order: name -> what makes the credential.

    Raises:
        UsageError: the variable names none.
    """
    links: dict[str, tuple[bool, Callable[[], Any]]] = {
        "environment": ("AZURE_CLIENT_ID" in environ and "AZURE_TENANT_ID" in environ, _environment),
        "workload-identity": ("AZURE_FEDERATED_TOKEN_FILE" in environ, _workload_identity),
        "managed-identity": (bool({"IDENTITY_ENDPOINT", "MSI_ENDPOINT"} & set(environ)), _managed_identity),
        "cli": (True, _cli),
        "browser": (False, _browser),
    }
    asked = environ.get(VARIABLE)
    if asked is None:
        return {name: make for name, (there, make) in links.items() if there}
    if asked not in links:
        raise UsageError(
            f"{VARIABLE}={asked}: there is no such way to sign in",
            facts={"known": ", ".join(links)},
            fix=f"export {VARIABLE}=cli",
        )
    return {asked: links[asked][1]}


def _refused(failures: Mapping[str, Exception]) -> AuthError:
    """One line about every link."""
    tried = "; ".join(f"{name}: {_words(problem)}" for name, problem in failures.items())
    return AuthError(
        "not signed in to Azure",
        facts={"tried": tried, "or": f"export {VARIABLE}=browser"},
        fix="az login",
    )


def _words(problem: Exception) -> str:
    text = redact(str(problem).strip() or type(problem).__name__).splitlines()[0]
    return text if len(text) < 160 else text[:157] + "..."


def _environment() -> Any:
    from azure.identity import EnvironmentCredential

    return EnvironmentCredential()


def _workload_identity() -> Any:
    from azure.identity import WorkloadIdentityCredential

    return WorkloadIdentityCredential()


def _managed_identity() -> Any:
    from azure.identity import ManagedIdentityCredential

    return ManagedIdentityCredential(client_id=os.environ.get("AZURE_CLIENT_ID"))


def _cli() -> Any:
    from azure.identity import AzureCliCredential

    return AzureCliCredential(process_timeout=CLI_SECONDS)


def _browser() -> Any:
    from azure.identity import InteractiveBrowserCredential

    return InteractiveBrowserCredential()
