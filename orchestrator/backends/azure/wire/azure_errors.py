"""Errors of Azure's SDK as ours: the kind of error, what Azure reports, and the fix."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from orchestrator.support.errors import (
    AuthError,
    CapacityError,
    ConflictError,
    NotFoundError,
    QuotaError,
    RequestRefused,
    ServiceError,
    UserError,
)
from orchestrator.support.redact import redact

T = TypeVar("T")
PAUSES = (1.0, 4.0, 15.0)  # seconds before a request is sent again, unless Azure gives a time
MAX_MESSAGE_CHARS = 400  # of Azure's message, which repeats itself
TOO_MANY = 429  # HTTP status: too many requests
NOT_AUTHENTICATED = "AuthenticationFailed"  # of the blob service, for a wrong or expired signature
_AGAIN = "run the same command again"
# By Azure's code or message first: quota and capacity arrive with several status codes, some of which (400, 409) have
# other meanings too. Not those of throttling and of outages, whose messages mention limits and quotas too.
_BY_TEXT: tuple[tuple[str, type[UserError], str, str], ...] = (
    (
        r"quota|cores? limit|VmSizeNotSupported|exceed\w* .*(cores?\b|vcpu)",
        QuotaError,
        "the quota does not allow it",
        "request quota: https://ml.azure.com/quota",
    ),
    (
        r"AllocationFail|OutOfCapacity|SkuNotAvailable|ZonalAllocation|not enough capacity",
        CapacityError,
        "Azure has no such machine free",
        "orchestrator skus, for another size",
    ),
)
_STORAGE_REFUSED = (
    "your account may not use the storage account, or its firewall refuses this machine",
    "ask for the role Storage Blob Data Contributor on the storage account, or add this machine to its firewall",
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SDK_DETAILS = re.compile(r"Details:\s*\(x\)\s*(.+?)\s*Resolutions:")  # the rest is advice about `az`
_TENANT = re.compile(r"must match (?:the tenant|one of the tenants) 'https://[^/']+/([\w.-]+)")
_TLS = re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed", re.IGNORECASE)
_BY_STATUS: dict[int | None, tuple[type[UserError], str, str | None]] = {
    None: (ServiceError, "Azure cannot be reached", _AGAIN),
    403: (
        AuthError,
        "your account may not do this",
        "ask for the role AzureML Data Scientist (clusters: AzureML Compute Operator) on the workspace",
    ),
    404: (NotFoundError, "it does not exist on Azure", None),
    409: (ConflictError, "Azure reports a conflict", None),
}


@contextmanager
def translated_errors(what: str) -> Iterator[None]:
    """Translate an error that Azure's SDK raises inside into a `UserError`, whose message begins with `what`.

    The SDK's error becomes its `__cause__`: `is_transient` and `retry_after` read it.

    Args:
        what: subject of the request, such as `cluster NAME`.

    Raises:
        UserError: Azure refused, cannot be reached, or does not accept the sign-in.
    """
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as problem:
        raise explain(problem, what) from problem


def explain(problem: Any, what: str) -> UserError:
    """Return the `UserError` for an error of Azure's SDK.

    Args:
        problem: the SDK's error; without a status code, no reply arrived.
        what: subject of the request, the beginning of the message.
    """
    status: Any = getattr(problem, "status_code", None)
    code = error_code(problem)
    facts = {"reason": reason(problem), **({"code": code} if code else {})}
    if status is not None and not is_transient(problem):
        for pattern, kind, message, fix in _BY_TEXT:
            if re.search(pattern, f"{code} {facts['reason']}", re.IGNORECASE):
                return kind(f"{what}: {message}", facts=facts, fix=fix)
    if status is None and (found := _without_reply(problem, what, facts)) is not None:
        return found
    if status == 403 and code == NOT_AUTHENTICATED:
        text = "the storage account does not accept the key or the signature, which may have expired"
        return AuthError(f"{what}: {text}", facts=facts, fix=f"{_AGAIN}; if it fails again, set this machine's clock")
    if status == 403 and ".blob." in _host(problem):
        text, role = _STORAGE_REFUSED
        return AuthError(f"{what}: {text}", facts=facts, fix=role)
    if status == 401:
        tenant = _TENANT.search(facts["reason"])
        fix = sign_in_command() if tenant is None else _tenant_fix(tenant[1])
        return AuthError(f"{what}: Azure does not accept the token", facts=facts, fix=fix)
    if status in _BY_STATUS:
        known, message, advice = _BY_STATUS[status]
        return known(f"{what}: {message}", facts=facts, fix=advice)
    if status != TOO_MANY and status < 500:  # the same request again would be refused again
        return RequestRefused(f"{what}: Azure refused the request (HTTP {status})", facts=facts)
    verb = "is busy" if status == TOO_MANY else "failed"
    return ServiceError(f"{what}: Azure {verb} (HTTP {status})", facts=facts, fix=_AGAIN)


def _without_reply(problem: Any, what: str, facts: dict[str, str]) -> UserError | None:
    """Return the error for a failure before any request, or of the connection's TLS; None: Azure did not reply."""
    if is_tls_failure(problem):
        return tls_error(what, facts)
    if type(problem).__module__.startswith("azure.ai.ml."):  # the SDK's own check: it made no request
        missing = re.search(r"not ?found|does not exist|no such", f"{type(problem).__name__} {facts['reason']}", re.I)
        if missing:
            fix = "orchestrator data asset list, for the data of the workspace"
            return NotFoundError(f"{what}: Azure's client cannot find a part of it", facts=facts, fix=fix)
        return RequestRefused(f"{what}: Azure's client refused it", facts=facts)
    return None


def is_tls_failure(problem: Any) -> bool:
    """Return whether the certificate of a server could not be verified."""
    return bool(_TLS.search(str(problem)))


def tls_error(what: str, facts: Mapping[str, str]) -> ServiceError:
    """Return the error for a certificate that cannot be verified, as behind a proxy that inspects TLS."""
    return ServiceError(
        f"{what}: cannot verify the certificate of Azure's server",
        facts=dict(facts),
        fix="export REQUESTS_CA_BUNDLE=FILE, with the certificate of your proxy",
    )


def sign_in_command() -> str:
    """Return the command that signs in on this machine: `az` may not be installed."""
    if shutil.which("az"):
        return "az login"
    return "export ORCHESTRATOR_AZURE_SIGN_IN=browser, or install az and run: az login"


def _tenant_fix(tenant: str) -> str:
    """Return the command that signs in to the tenant of the subscription: to sign in again to another does not help."""
    install = "" if shutil.which("az") else "install az and run: "
    return f"{install}az login --tenant {tenant}, or set AZURE_TENANT_ID to it with a service principal of that tenant"


def _host(problem: Any) -> str:
    request = getattr(problem, "request", None) or getattr(getattr(problem, "response", None), "request", None)
    return urlsplit(str(getattr(request, "url", ""))).hostname or ""


def error_code(problem: Any) -> str | None:
    """Return Azure's own code of an error, such as ClusterCoreQuotaReached; None without one."""
    code = getattr(getattr(problem, "error", None), "code", None) or getattr(problem, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def reason(problem: Any) -> str:
    """Return Azure's message, on one line, without secrets."""
    # redacted, because messages quote requests: addresses of blobs contain signatures
    text = getattr(getattr(problem, "error", None), "message", None) or getattr(problem, "message", None) or problem
    line = " ".join(_COLOUR.sub("", redact(str(text))).split())
    if (details := _SDK_DETAILS.search(line)) is not None:
        line = details[1]
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 3] + "..."


def is_transient(problem: Any) -> bool:
    """Return whether a retry may succeed: no reply, too many requests, or an error of the server."""
    status = getattr(problem, "status_code", None)
    return status is None or status == TOO_MANY or status >= 500


def retry_reading(ask: Callable[[], T]) -> T:
    """Return the answer to a request that changes nothing, sent again after transient errors.

    The SDK repeats a GET by itself, but not a POST, such as the one for a datastore's key.

    Raises:
        UserError: Azure refused, or all tries failed.
    """
    for pause in PAUSES:
        try:
            return ask()
        except ServiceError as problem:
            if not is_transient(problem.__cause__):
                raise
            time.sleep(retry_after(problem.__cause__) or pause)
    return ask()


def retry_after(problem: Any) -> float | None:
    """Return the time in seconds after which Azure allows the next request; None: the reply does not contain it.

    Azure's own header in milliseconds has precedence over HTTP's Retry-After.
    """
    headers = getattr(getattr(problem, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 1000.0), ("Retry-After", 1.0)):
        with suppress(KeyError, ValueError):
            return float(headers[name]) / unit
    with suppress(KeyError, ValueError):  # HTTP also allows a date
        return max(0.0, parsedate_to_datetime(headers["Retry-After"]).timestamp() - time.time())
    return None
