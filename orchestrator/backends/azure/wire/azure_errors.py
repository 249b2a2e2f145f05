"""What Azure refuses, in the house's words: which kind of error it is, what Azure said, what mends it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from orchestrator.support.errors import (
    AuthError,
    CapacityError,
    ConflictError,
    NotFoundError,
    QuotaError,
    ServiceError,
    UserError,
)
from orchestrator.support.redact import redact

LONGEST = 400  # of what Azure says; it repeats itself
_QUOTA = re.compile(r"quota|cores? limit|VmSizeNotSupported|exceed\w* .*limit", re.IGNORECASE)
_CAPACITY = re.compile(
    r"AllocationFail|OutOfCapacity|SkuNotAvailable|ZonalAllocation|not enough capacity", re.IGNORECASE
)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns what Azure's SDK raises inside into an error of ours; `what` was being done.

    Raises:
        UserError: Azure refused, cannot be reached, or does not let us in.
    """
    from azure.core.exceptions import AzureError

    try:
        yield
    except UserError:
        raise
    except AzureError as problem:
        raise explain(problem, what) from problem


def explain(problem: Any, what: str) -> UserError:
    """The error of ours that tells of one of Azure's SDK."""
    status, code = getattr(problem, "status_code", None), error_code(problem)
    facts = {"says": said(problem)}
    if code:
        facts["code"] = code
    if status is None:
        return ServiceError(f"{what}: Azure cannot be reached", facts=facts, fix="the same command again")
    if _QUOTA.search(f"{code} {facts['says']}"):
        return QuotaError(f"{what}: the quota does not allow it", facts=facts, fix="https://ml.azure.com/quota")
    if _CAPACITY.search(f"{code} {facts['says']}"):
        return CapacityError(
            f"{what}: Azure has no such machine free", facts=facts, fix="orchestrator skus, for another size"
        )
    if status == 401:
        return AuthError(f"{what}: Azure does not accept the token", facts=facts, fix="az login")
    if status == 403:
        return AuthError(
            f"{what}: your account may not do this",
            facts=facts,
            fix="ask for the role AzureML Data Scientist (clusters: AzureML Compute Operator) on the workspace",
        )
    if status == 404:
        return NotFoundError(f"{what}: Azure has no such thing", facts=facts)
    if status == 409:
        return ConflictError(f"{what}: something is in the way", facts=facts)
    kind = "is busy" if status == 429 else "failed" if status >= 500 else "refused"
    return ServiceError(f"{what}: Azure {kind} (HTTP {status})", facts=facts, fix="the same command again")


def error_code(problem: Any) -> str | None:
    """Azure's own code of an error."""
    error = getattr(problem, "error", None)
    code = getattr(error, "code", None) or getattr(problem, "error_code", None)
    return None if code is None else str(getattr(code, "value", code))


def said(problem: Any) -> str:
    """What Azure said, on one line, without secrets."""
    text = getattr(getattr(problem, "error", None), "message", None) or getattr(problem, "message", None) or problem
    line = " ".join(redact(str(text)).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def passing(problem: Any) -> bool:
    """Whether an error of Azure's SDK is one that may be gone in a moment."""
    status = getattr(problem, "status_code", None)
    return status is None or status == 429 or status >= 500


def retry_after(problem: Any) -> float | None:
    """Seconds that Azure asks to wait; None: it does not say."""
    headers = getattr(getattr(problem, "response", None), "headers", None) or {}
    for name, unit in (("retry-after-ms", 1000.0), ("Retry-After", 1.0)):
        with suppress(KeyError, ValueError):
            return float(headers[name]) / unit
    return None
