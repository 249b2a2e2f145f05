"""The errors of the project as one tree; each kind has a stable name and an exit code.

    UserError                            exit code
      SpecError          spec                2      wrong keys or values in a spec, a config or a flag
      DataError          data                2      unusable input
      UsageError         usage               2      an invalid command line
      AuthError          auth                3      no valid credential
      QuotaError         quota               4      more than the subscription allows
      CapacityError      capacity            4      the region has no such machine free
      BudgetError        budget              4      more money than the user allowed
      NotFoundError      not-found           5      no such run, backend or file of a run
      TimeoutExceeded    timeout             6      the time limit of a wait is over
      RequestRefused     refused             2      a service read the request and refused it
      ServiceError       service             7      a backend or a remote service failed
      StorageError       storage             1      a folder that cannot be written
      ConflictError      conflict            1      a conflict with something that exists
      TrainingError      training            1      training cannot continue
      OutOfMemoryError   memory              1      memory ran out, and smaller micro batches do not fix it
      PeerError          peer                1      another process of the job ended
      MachineError       machine             8      this machine cannot run it: driver, GPU, a missing program
      HangError          hang               76      a process of the job makes no progress
      InternalError      bug                 1      a bug of ours
      JobFailed          job-failed          1      or the job's own exit code
      Interrupted        interrupted       130      Ctrl-C

Each is a `UserError`: a message, facts and a `fix`. Any other exception that escapes is a bug of ours.
"""

from __future__ import annotations

from typing import Any

from train_jobs.config.errors import (
    ConflictError,
    DataError,
    HangError,
    InternalError,
    MachineError,
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
    "MachineError",
    "NotFoundError",
    "OutOfMemoryError",
    "PeerError",
    "QuotaError",
    "RequestRefused",
    "ServiceError",
    "SpecError",
    "StorageError",
    "TimeoutExceeded",
    "TrainingError",
    "UsageError",
    "UserError",
]


class UsageError(UserError, kind="usage", exit_code=2):
    """An invalid command line: an unknown flag, a missing argument, two that exclude each other."""


class AuthError(UserError, kind="auth", exit_code=3):
    """Missing or invalid credentials: which were tried, why they failed, how to log in."""


class QuotaError(UserError, kind="quota", exit_code=4):
    """A request beyond the quota of the subscription: need, limit, used."""


class CapacityError(UserError, kind="capacity", exit_code=4):
    """A machine within the quota that the region has not available."""


class BudgetError(UserError, kind="budget", exit_code=4):
    """An estimate, or money spent, above the user's limit."""


class NotFoundError(UserError, kind="not-found", exit_code=5):
    """A run, a backend or a file of a run that does not exist."""


class TimeoutExceeded(UserError, kind="timeout", exit_code=6):  # noqa: N818
    """A wait that reached its time limit; the job continues."""


class RequestRefused(UserError, kind="refused", exit_code=2):  # noqa: N818
    """A service read the request and refused it: the same request would be refused again."""


class ServiceError(UserError, kind="service", exit_code=7):
    """A failure of a backend or a remote service; the original exception is the `__cause__`."""


class JobFailed(UserError, kind="job-failed"):  # noqa: N818
    """A job that failed, or was cancelled or preempted.

    Args:
        message: see `UserError`.
        exit_code: that of the job, which becomes the command's. Not 0, which would report success.
        more: facts and fix, see `UserError`.
    """

    def __init__(self, message: str, *, exit_code: int = 1, **more: Any) -> None:
        super().__init__(message, **more)
        assert exit_code != 0, "a job that ended with 0 did not fail"
        self.exit_code = exit_code  # type: ignore[misc]  # the one kind whose code is not its class's


class Interrupted(UserError, kind="interrupted", exit_code=130):  # noqa: N818
    """Ctrl-C: the command stopped following; the job continues."""
