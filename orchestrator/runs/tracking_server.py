"""Tracking servers: whether one answers and accepts the credentials, and what a failure means for the user."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Any

from orchestrator.support.errors import AuthError, ServiceError, UsageError
from orchestrator.support.secret_sources import without_credentials
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.tracking.mlflow_store import SQLITE, first_line, sqlite_path
from train_jobs.config.errors import in_shell

# MLflow's client retries a server that is away for ten minutes; a user's own values take precedence
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout has the result alone
    "GIT_PYTHON_REFRESH": "quiet",  # MLflow imports GitPython, which warns without git
}
REFUSED = (401, 403)
NO_ANSWER = re.compile(r"Read timed out|Remote end closed connection|\[Errno -?\d+\] (?P<error>[\w ]+)")
POLL_SECONDS = 1.0
REDIRECT_SECONDS = 10.0
DATABRICKS = "databricks"
ADDRESSES = "--to http://HOST:5000, sqlite:///FILE or databricks"


def set_defaults() -> None:
    """Set the variables of MLflow's client that the user has not set."""
    disable_telemetry()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def is_sign_in_refused(problem: BaseException) -> bool:
    """Return whether a server refused the credentials: MLflow's own error or, for artifacts, that of requests."""
    status = getattr(problem, "get_http_status_code", lambda: None)()
    return status in REFUSED or getattr(getattr(problem, "response", None), "status_code", None) in REFUSED


def sign_in_fix(uri: str) -> str:
    """Return which variables have the credentials of a server."""
    if uri.partition(":")[0] == DATABRICKS:
        return "export DATABRICKS_HOST and DATABRICKS_TOKEN, or choose a profile: databricks://PROFILE"
    return "export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


def reason_of(problem: BaseException) -> str:
    """Return why a request to a server or a store failed, in one line."""
    text = first_line(problem)
    if is_sign_in_refused(problem):
        return "the server refused the credentials"
    if "Max retries exceeded" in text and (found := NO_ANSWER.search(text)):
        return f"the server does not answer: {found['error'] or found[0]}"
    return text


def checked_address(uri: str) -> str:
    """Return a tracking URI with a scheme and without credentials; of an SQLite file, with its absolute path.

    Raises:
        UsageError: it is a path, or a host without a scheme, or has credentials.
    """
    refuse_credentials(uri)
    if uri != DATABRICKS and "://" not in uri:
        raise UsageError(f"invalid tracking URI {uri!r}: it has no scheme", fix=ADDRESSES)
    path = sqlite_path(uri)
    return uri if path is None else f"{SQLITE}{path.absolute()}"


def refuse_credentials(uri: str) -> None:
    """Require that an address has no credentials, which lists of processes and the shell's history would show.

    Raises:
        UsageError: it has some.
    """
    try:
        without_credentials(uri)
    except ValueError:
        raise UsageError("invalid tracking URI: it must not contain credentials", fix=sign_in_fix(uri)) from None


def check_server(uri: str, seconds: float = 0.0) -> None:
    """Require that a tracking server answers and accepts the credentials; of an SQLite store, nothing.

    Args:
        uri: tracking URI.
        seconds: how long to wait for a server that is being restarted.

    Raises:
        AuthError: it refused the credentials.
        ServiceError: it did not answer.
        UsageError: MLflow does not support the address, or the driver of its database is not installed.
    """
    if sqlite_path(uri) is not None:
        return
    set_defaults()
    until = time.monotonic() + seconds
    while (problem := _problem(uri)) is not None:
        if is_sign_in_refused(problem):
            facts = {"server": uri, "reason": reason_of(problem)}
            raise AuthError("cannot sign in to MLflow", facts=facts, fix=sign_in_fix(uri)) from problem
        _check_supported(uri, problem)
        if time.monotonic() > until:
            facts = {"server": uri, "reason": reason_of(problem)}
            fix = "start the server or correct the address, then repeat the command; it copies the rest"
            raise ServiceError("cannot reach MLflow", facts=facts, fix=fix) from problem
        time.sleep(POLL_SECONDS)


def _check_supported(uri: str, problem: Exception) -> None:
    """Raise a UsageError if a request failed because of its address: waiting for a server would change nothing."""
    from mlflow.exceptions import MlflowException, RestException
    from sqlalchemy.exc import ArgumentError

    lead = f"cannot use the tracking URI {uri}"
    if isinstance(problem, RestException) and (target := _redirect(uri)) is not None:
        # the client follows it with a GET, and an answer to that names other reasons
        raise UsageError(f"{lead}: the server redirects to {target}", fix=f"--to {in_shell(target)}") from problem
    if isinstance(problem, ModuleNotFoundError):
        fix = f"install {problem.name} in the environment of orchestrator"
        raise UsageError(f"{lead}: its driver {problem.name} is not installed", fix=fix) from problem
    own = isinstance(problem, MlflowException) and not isinstance(problem, RestException)  # not the answer of a server
    refused = own and getattr(problem, "error_code", "") == "INVALID_PARAMETER_VALUE"
    if refused or isinstance(problem, ArgumentError):
        raise UsageError(f"{lead}: MLflow does not support it", fix=ADDRESSES) from problem


def _redirect(uri: str) -> str | None:
    """Return the address that a server redirects requests to; None: it does not redirect."""
    import requests

    path = "/api/2.0/mlflow/experiments/search"
    with suppress(requests.RequestException):
        answer = requests.post(uri.rstrip("/") + path, json={}, allow_redirects=False, timeout=REDIRECT_SECONDS)
        target = answer.headers.get("Location", "")
        if answer.is_redirect and target.startswith(("http://", "https://")) and target.endswith(path):
            return target.removesuffix(path)
    return None


def _problem(uri: str) -> Exception | None:
    """Return the error of one request that changes nothing."""
    from mlflow.tracking import MlflowClient

    try:
        client: Any = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    except Exception as problem:  # MLflow, the network and the drivers of databases each have their own
        return problem
    return None
