"""Kinds and exit codes of errors are an interface: scripts depend on them."""

from __future__ import annotations

import pytest

from orchestrator.support import errors
from orchestrator.support.errors import JobFailed, UserError

TREE = {
    "AuthError": ("auth", 3),
    "BudgetError": ("budget", 4),
    "CapacityError": ("capacity", 4),
    "ConflictError": ("conflict", 1),
    "DataError": ("data", 2),
    "HangError": ("hang", 76),
    "MachineError": ("machine", 8),
    "Interrupted": ("interrupted", 130),
    "JobFailed": ("job-failed", 1),
    "NotFoundError": ("not-found", 5),
    "OutOfMemoryError": ("memory", 1),
    "QuotaError": ("quota", 4),
    "RequestRefused": ("refused", 2),
    "ServiceError": ("service", 7),
    "SpecError": ("spec", 2),
    "StorageError": ("storage", 1),
    "TimeoutExceeded": ("timeout", 6),
    "TrainingError": ("training", 1),
    "PeerError": ("peer", 1),
    "InternalError": ("bug", 1),
    "UsageError": ("usage", 2),
    "UserError": ("error", 1),
}


def test_every_error_has_kind_code_and_line_in_tree() -> None:
    assert sorted(TREE) == errors.__all__
    for name, (kind, code) in TREE.items():
        error = getattr(errors, name)("what failed")
        assert (error.kind, error.exit_code) == (kind, code)
        assert isinstance(error, UserError)
        if name != "UserError":
            (line,) = [line for line in (errors.__doc__ or "").splitlines() if line.split()[:1] == [name]]
            assert line.split()[1:3] == [kind, str(code)]


def test_failed_job_ends_the_command_with_its_exit_code() -> None:
    failure = JobFailed("rank 0 ended with 3", exit_code=3, facts={"where": "rank-0.log"}, fix="orchestrator logs x")
    assert (failure.exit_code, JobFailed.exit_code) == (3, 1)
    assert str(failure).splitlines()[1:] == ["  where  rank-0.log", "  fix    orchestrator logs x"]


def test_failed_job_never_exits_with_zero() -> None:
    with pytest.raises(AssertionError):
        JobFailed("?", exit_code=0)
