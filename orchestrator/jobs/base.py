"""What plans of all kinds of jobs have, and how it is found: code, text by content, environment, price, identity."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from orchestrator.jobs.inputs import JobOutput, Needs
from orchestrator.runs.status import Counts
from orchestrator.snapshot import Snapshot
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.resolved import Change
from orchestrator.support.formatting import wrapped
from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.lineage import Link
from train_jobs.config import CheckpointConfig
from train_jobs.config.base import Config


class Plan(Config):
    """What will be done."""

    name: str
    """The run's name: slug and hash."""
    run_hash: str
    """8 hex digits over all that shapes the result: two plans that share it would train the same weights."""
    spec: JobSpec
    """What the user wants."""
    job: Config
    """What the job itself will read."""
    compute: ResolvedCompute
    """Nodes, processes, device and threads, nothing left on auto."""
    changes: dict[str, Change]
    """Dotted path -> value and origin of what differs from presets and defaults."""
    snapshot: Snapshot
    """The code."""
    data: DataFingerprint
    """The text, by content."""
    parent: Link | None = None
    """The model or the run that training starts from, as the last link of its lineage; None: weights are drawn."""
    environment: dict[str, str]
    """Version of Python and of each package that shapes a result."""
    warnings: tuple[str, ...]
    """For the user to read; nothing is refused for them."""
    needs: Needs = Field(default=Needs(), exclude=True)
    """What the job needs from outside, for a backend on another machine."""
    delivery: Path | None = None
    """Where on this machine a result is put once it is complete; None: it stays with the run."""
    stores: ClassVar[bool] = False
    """Whether its job makes or finds token stores, and is given their folder."""

    @property
    def steps(self) -> int | None:
        """Optimizer steps, or other units named by `counts`, that it will take; None: unknown."""
        return None

    @property
    def counts(self) -> Counts:
        """What its reports are numbered by."""
        return "steps"

    @property
    def makes(self) -> tuple[JobOutput, ...]:
        """What the job writes: the run's own outputs and, of some kinds, the folder of token stores."""
        return (JobOutput("run"), *((JobOutput("stores", shared=True),) if self.stores else ()))

    @property
    def saves(self) -> CheckpointConfig | None:
        """When checkpoints are saved; None: the job saves none."""
        return None

    @property
    def weights_bytes(self) -> int | None:
        """Most that checkpoints and models take of the disk; None: the job saves none."""
        return None

    def portable(self) -> dict[str, Any]:
        """Return the job's configuration as JSON without paths of this machine, which `needs.placed` replaces."""
        config = self.job.model_dump(mode="json")
        for key in self.needs.local:
            tree, model = config, type(self.job)
            *sections, last = key.split(".")
            for section in sections:
                tree, model = tree[section], type(getattr(self.job, section))
            field = model.model_fields[last]
            if field.is_required():
                del tree[last]
            else:
                tree[last] = field.get_default(call_default_factory=True)
        return config

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.compute.world_size

    def with_variables(self, variables: Mapping[str, str]) -> Self:
        """Return the same plan with more environment variables; its hash stays."""
        environment = self.spec.environment
        more = environment.model_copy(update={"variables": {**environment.variables, **variables}})
        return self.model_copy(update={"spec": self.spec.model_copy(update={"environment": more})})

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON has it; of the snapshot a summary, without the name of every file."""
        document = self.model_dump(mode="json", by_alias=True, exclude={"snapshot"}, serialize_as_any=True)
        counted = {"steps": self.steps, "counts": self.counts, "world_size": self.world_size}
        return {**document, **counted, "snapshot": self.snapshot.summary()}

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans as label and fact; a fact without a label continues the one before."""

    def summary(self) -> str:
        """The same as lines of at most 80 columns."""
        return wrapped(self.name, self.facts())

    def _repr_html_(self) -> str:
        """The same as a notebook shows it."""
        from orchestrator.support.html import card

        return card(self.name, self.facts())
