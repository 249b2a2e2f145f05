"""What can go wrong, as one tree; each kind has a stable name and an exit code.

    UserError                            exit code
      SpecError          spec                2      wrong keys or values in a spec, a config or a flag
      DataError          data                2      text that cannot be used
      UsageError         usage               2      a command line that makes no sense
      AuthError          auth                3      no valid credential
      QuotaError         quota               4      more than the subscription allows
      CapacityError      capacity            4      the region has no such machine free
      BudgetError        budget              4      more money than the user allowed
      NotFoundError      not-found           5      no such run, backend, file of a run
      TimeoutExceeded    timeout             6      waited as long as was allowed
      ServiceError       service             7      a backend or a remote service failed
      StorageError       storage             1      a folder that cannot be written
      ConflictError      conflict            1      something is in the way
      TrainingError      training            1      training cannot go on
      OutOfMemoryError   memory              1      memory ran out, and smaller micro batches do not mend it
      PeerError          peer                1      another process of the job went away
      HangError          hang               76      a process of the job got nowhere
      InternalError      bug                 1      a mistake of ours
      JobFailed          job-failed          1      or the job's own exit code
      Interrupted        interrupted       130      Ctrl-C

Every one of them is a `UserError`: a message, facts and a `fix`. Anything else that escapes is a bug of ours.
"""

from __future__ import annotations

from typing import Any

from train_jobs.config.errors import (
    ConflictError,
    DataError,
    HangError,
    InternalError,
    OutOfMemoryError,
    PeerError,
    SpecError,
    StorageError,
    TrainingError,
    UserError,
)

__all__ = [
    "AuthError",
    "BudgetError",
    "CapacityError",
    "ConflictError",
    "DataError",
    "HangError",
    "InternalError",
    "Interrupted",
    "JobFailed",
    "NotFoundError",
    "OutOfMemoryError",
    "PeerError",
    "QuotaError",
    "ServiceError",
    "SpecError",
    "StorageError",
    "TimeoutExceeded",
    "TrainingError",
    "UsageError",
    "UserError",
]


class UsageError(UserError):
    """A command line that makes no sense: an unknown flag, a missing argument, two that exclude each other."""

    kind = "usage"
    exit_code = 2


class AuthError(UserError):
    """No valid credential: which one was tried, why it failed, how to log in."""

    kind = "auth"
    exit_code = 3


class QuotaError(UserError):
    """More than the subscription allows: need, limit, used."""

    kind = "quota"
    exit_code = 4


class CapacityError(UserError):
    """The quota would allow it, but there is no such machine free."""

    kind = "capacity"
    exit_code = 4


class BudgetError(UserError):
    """The estimate, or what was spent, is more than the user allowed."""

    kind = "budget"
    exit_code = 4


class NotFoundError(UserError):
    """No such run, backend or file of a run."""

    kind = "not-found"
    exit_code = 5


class TimeoutExceeded(UserError):  # noqa: N818
    """Waited as long as was allowed; what was waited for goes on."""

    kind = "timeout"
    exit_code = 6


class ServiceError(UserError):
    """A backend or a remote service failed; the original exception is the `__cause__`."""

    kind = "service"
    exit_code = 7


class JobFailed(UserError):  # noqa: N818
    """The job ended without success.

    Args:
        message, facts, fix: as of `UserError`.
        exit_code: the job's own, so that the command ends with the same; 0 would claim success and is refused.
    """

    kind = "job-failed"

    def __init__(self, message: str, *, exit_code: int = 1, **more: Any) -> None:
        super().__init__(message, **more)
        assert exit_code != 0, "a job that ended with 0 did not fail"
        self.exit_code = exit_code  # type: ignore[misc]  # the one kind whose code is not its class's


class Interrupted(UserError):  # noqa: N818
    """Ctrl-C: the command stopped following; the job goes on."""

    kind = "interrupted"
    exit_code = 130
