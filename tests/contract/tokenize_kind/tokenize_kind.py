"""A job kind added by another package: reads a text, writes a file of statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from orchestrator.jobs.base import Plan, SharedFacts, files_fingerprint
from orchestrator.jobs.facts import plan_rows
from orchestrator.jobs.inputs import DATA, At, JobInput, Needs
from orchestrator.jobs.kind import JobKind
from orchestrator.specs.job import CodeSpec, JobSpec
from orchestrator.specs.paths import PathKeys
from orchestrator.specs.resolved import Resolved
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.config.fields import Config

HERE = Path(__file__).resolve().parent


class TokenizeConfig(Config):
    """Configuration of the job."""

    text: Path
    """A text file."""
    lowercase: bool = True
    """Count words in lower case."""


class TokenizeSpec(TokenizeConfig, JobSpec):
    """Spec of a tokenisation."""

    kind: Literal["tokenize"] = "tokenize"
    """Which job this is."""
    recipe: str = "plain"
    """Recipe that the keys of the job are laid over: plain."""
    code: CodeSpec = CodeSpec(folder=HERE / "job", entry="count_tokens")

    def job_config(self) -> TokenizeConfig:
        """Return the part of the spec that the job reads."""
        return self.part(TokenizeConfig)


class TokenizePlan(Plan):
    """Plan of a tokenisation."""

    spec: TokenizeSpec
    """What the user wants."""
    job: TokenizeConfig
    """What the job itself will read."""

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans."""
        return plan_rows(self, [("words", "in lower case" if self.job.lowercase else "as written")])


class TokenizeKind(JobKind):
    """The kind: counts the words of a text."""

    name = "tokenize"
    subject = "words"
    gpus = False
    recipes = HERE / "recipes"
    spec = TokenizeSpec
    paths = PathKeys(files=("text",))

    def data_flag(self, words: list[str]) -> dict[str, tuple[Any, str]]:
        """Return key -> value, and the flag, of the file given by --data."""
        return {"text": (words[0] if words else None, "--data")}

    def plan(self, resolved: Resolved, home: Path, reuse: Plan | None) -> TokenizePlan:
        """Read text and code, and return the plan."""
        spec = resolved.spec
        assert isinstance(spec, TokenizeSpec)
        job = spec.job_config()
        files = {job.text.name: job.text}
        data = files_fingerprint(str(job.text), files, home / FINGERPRINT_CACHE)
        shaping = {"text": data.sha256, "lowercase": job.lowercase}
        return TokenizePlan(
            **SharedFacts.of(resolved, home, [job.text], reuse).fields(shaping, data),
            needs=Needs(
                (JobInput(DATA, "text", data.sha256, list_files=lambda: files),),
                {"text": At(DATA, job.text.name)},
                ("text",),
            ),
            job=job,
        )


TOKENIZE = TokenizeKind()
