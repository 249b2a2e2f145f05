"""What will be done: the resolved spec, the code, the data by content, and what it will need.

    plan = make_plan(resolve_spec("pretrain", file=Path("job.yaml")), home=home_folder(os.environ))
    print(plan.summary())

A plan is made offline and writes nothing but a cache of content hashes under the home folder. It knows no backend:
a backend turns it into a request.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from orchestrator.estimates import Estimates, PrepareEstimates, estimate, estimate_preparation
from orchestrator.snapshot import Snapshot, take_snapshot
from orchestrator.specs import Change, JobSpec, PrepareSpec, PretrainSpec, Resolved, ResolvedCompute, usable_cores
from orchestrator.specs.azure import AZURE
from orchestrator.specs.environment import PACKAGES
from orchestrator.summary import bytes_text, model_rows, plan_summary, preparation_rows, training_rows
from train_jobs.config import PrepareConfig, PretrainConfig, TextConfig
from train_jobs.config.base import Config
from train_jobs.config.errors import DataError, SpecError
from train_jobs.config.formats import require_outside
from train_jobs.config.initial import initial_lineage
from train_jobs.config.lineage import Link, PhaseFacts
from train_jobs.config.own import own_names
from train_jobs.config.phase import EarlierPhase, find_checkpoint, phase_lineage, read_phase, verify_phase
from train_jobs.config.prepare import not_shaping
from train_jobs.config.pretrain import OBSERVERS, on_store
from train_jobs.config.sources import DataFingerprint, fingerprint, text_files
from train_jobs.config.store import StoreManifest, require_manifest, store_folder

HASH_DIGITS = 8
FINGERPRINT_CACHE = Path("cache", "fingerprints.json")  # below the home folder


class Plan(Config):
    """What will be done."""

    name: str
    """The run's name: slug and hash."""
    run_hash: str
    """8 hex digits over all that shapes the result: two plans that share it would train the same weights."""
    spec: JobSpec
    """What the user wants."""
    job: PretrainConfig | PrepareConfig
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

    @property
    def steps(self) -> int | None:
        """Optimizer steps that it shall take; None: it trains nothing."""
        return None

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.compute.world_size

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON has it; of the snapshot a summary, without the name of every file."""
        document = self.model_dump(mode="json", by_alias=True, exclude={"snapshot"})
        return {**document, "world_size": self.world_size, "snapshot": self.snapshot.summary()}

    def summary(self) -> str:
        """The plan for humans: lines of at most 80 columns."""
        return plan_summary(self)


class PretrainPlan(Plan):
    """A pretraining."""

    spec: PretrainSpec
    """What the user wants."""
    job: PretrainConfig
    """What the job itself will read."""
    accumulation_steps: int | None
    """Micro batches that each process sums up before an optimizer step; None: the micro batch is yet to be found."""
    phase: PhaseFacts | None
    """The checkpoint that weights and moments are taken over from; None: none is."""
    estimates: Estimates
    """What it will need."""

    @property
    def steps(self) -> int:
        """Optimizer steps that it shall take."""
        return self.job.train.steps

    def summary(self) -> str:
        """The plan for humans: lines of at most 80 columns."""
        return plan_summary(self, model_rows(self), training_rows(self))


class PreparePlan(Plan):
    """A preparation of text."""

    spec: PrepareSpec
    """What the user wants."""
    job: PrepareConfig
    """What the job itself will read."""
    estimates: PrepareEstimates
    """What it will need."""

    def summary(self) -> str:
        """The plan for humans: lines of at most 80 columns."""
        return plan_summary(self, how=preparation_rows(self))


def make_plan(resolved: Resolved, *, home: Path) -> Plan:
    """Reads the text and the code, and puts the plan together.

    Args:
        resolved: the spec, validated.
        home: the home folder, for the cache of content hashes.

    Raises:
        DataError: the text cannot be read, or the vocabulary is no UTF-8 text.
        SpecError: the batch does not divide; the user's code holds what must not be shipped, or not what shall run.
        ConflictError: the lineage of what training starts from does not verify, or a file of a checkpoint.
    """
    if isinstance(resolved.spec, PrepareSpec):
        return _plan_preparation(resolved, resolved.spec, home)
    assert isinstance(resolved.spec, PretrainSpec)
    return _plan_pretraining(resolved, resolved.spec, home)


def _plan_pretraining(resolved: Resolved, spec: PretrainSpec, home: Path) -> PretrainPlan:
    job = spec.job_config()
    compute = _priced(resolved.compute, home, low_priority=spec.compute.tier != "dedicated")
    named = store_folder(job.data, job.data.store)
    store = require_manifest(named) if named is not None else None
    remote = spec.azure.data if spec.backend == AZURE else None
    if store is not None:
        job, data = on_store(job, store), store.data
    elif remote is not None:
        data = _remote_data(remote)
    else:
        data = fingerprint(job.data.text, cache=home / FINGERPRINT_CACHE)
    phase = read_phase(find_checkpoint(job.phase_from)) if job.phase_from else None
    parent = _parent(job, phase, home / FINGERPRINT_CACHE)
    snapshot = _snapshot(resolved, home, store=job.data.store)
    own = {key: resolved.changes[key].origin for key in own_names(job) if key in resolved.changes}
    if missing := snapshot.missing_modules(own_names(job), own):
        raise SpecError("what the spec names is not in the code", problems=missing, fix="--code DIR with it")
    environment = _environment(spec)
    run_hash = _hash(_identity(resolved, _training(job, store or data, phase or parent), snapshot, environment))
    estimates = estimate(
        job,
        vocab_size=store.vocab_size if store else _vocab_size(job),
        device=compute.device,
        world_size=compute.world_size,
    )
    return PretrainPlan(
        name=f"{spec.slug}-{run_hash}",
        run_hash=run_hash,
        spec=spec,
        job=job,
        compute=compute,
        accumulation_steps=job.train.accumulation_steps(compute.world_size),
        changes=resolved.changes,
        snapshot=snapshot,
        data=data,
        parent=parent,
        phase=phase.facts if phase else None,
        environment=environment,
        estimates=estimates,
        warnings=(*resolved.warnings, *_disk_warnings(estimates.disk_bytes, home, "checkpoints")),
    )


def _plan_preparation(resolved: Resolved, spec: PrepareSpec, home: Path) -> PreparePlan:
    job = spec.job_config()
    compute = _priced(resolved.compute, home, low_priority=spec.compute.tier != "dedicated")
    remote = spec.azure.data if spec.backend == AZURE else None
    if not remote and job.store is not None:
        require_outside(job.data.text, job.store, what="the store", fix="another --store, outside of it")
    data = _remote_data(remote) if remote else fingerprint(job.data.text, cache=home / FINGERPRINT_CACHE)
    snapshot = _snapshot(resolved, home, store=job.store)
    environment = _environment(spec)
    store = str(job.store) if job.store else None
    facts = {"data": _text(job.data, data), "store": store, "keep_steps": job.keep_steps}
    run_hash = _hash(_identity(resolved, facts, snapshot, environment))
    estimates = estimate_preparation(job, data, nodes=compute.nodes, cores=usable_cores())
    return PreparePlan(
        name=f"{spec.slug}-{run_hash}",
        run_hash=run_hash,
        spec=spec,
        job=job,
        compute=compute,
        changes=resolved.changes,
        snapshot=snapshot,
        data=data,
        environment=environment,
        estimates=estimates,
        warnings=(*resolved.warnings, *_disk_warnings(estimates.disk_bytes, job.store or home, "the store")),
    )


def _snapshot(resolved: Resolved, home: Path, *, store: Path | None) -> Snapshot:
    """The code, with what shall run in it."""
    snapshot = take_snapshot(code=resolved.spec.code, apart=_no_code(resolved, home, store))
    if "code.entry" in resolved.changes:
        snapshot.check_entry(resolved.spec.code.entry, where=resolved.changes["code.entry"].origin)
    return snapshot


def _environment(spec: JobSpec) -> dict[str, str]:
    """With what the job will run: this Python and its packages, or what the environment on Azure has."""
    if spec.backend != AZURE:
        return spec.environment.describe()
    if spec.azure.environment != "auto":
        return {"environment": spec.azure.environment}
    from orchestrator.images import pinned_versions

    return pinned_versions(PACKAGES)


def _priced(compute: ResolvedCompute, home: Path, *, low_priority: bool) -> ResolvedCompute:
    """With the list price of its machines, where nobody said another."""
    if compute.size is None or compute.price_per_hour is not None:
        return compute
    from orchestrator.estimates.prices import read_prices
    from orchestrator.estimates.sizes import find_size, price_of_size

    size = find_size(compute.size)
    price = price_of_size(size, low_priority=low_priority, refreshed=read_prices(home)) if size else None
    if price is None:
        return compute
    bound = ", of a dedicated machine: low priority costs about a fifth" if price.bound else ""
    origin = f"list price of {price.date} in {price.region}{bound}"
    return compute.model_copy(update={"price_per_hour": price.usd, "price_origin": origin})


def _remote_data(name: str) -> DataFingerprint:
    """Text that lies in Azure: nobody here can read it, so its name, which has a version, stands for its content."""
    return DataFingerprint(name=name, files=0, total_bytes=0, sha256=hashlib.sha256(name.encode()).hexdigest())


def _parent(job: PretrainConfig, phase: EarlierPhase | None, cache: Path) -> Link | None:
    """What training starts from, as the last link of its lineage; every file of it is read, or its hash remembered."""
    if job.init_from is not None:
        return initial_lineage(job.init_from, cache).head
    if phase is None:
        return None
    verify_phase(phase, cache)
    return phase_lineage(phase).head


def _no_code(resolved: Resolved, home: Path, store: Path | None) -> dict[Path, str]:
    """What may lie in the user's folder and is never shipped: absolute path -> what it is."""
    assert isinstance(resolved.spec, PretrainSpec | PrepareSpec)
    data, folder = resolved.spec.data, resolved.spec.code.folder
    text = [Path(path) for source in data.text for path in source.path]
    if folder is not None and any(folder.is_relative_to(path) for path in text):
        text = [*text, *text_files(text)]  # the folder is itself data, and not all that is in it
    apart = [path for path in (*text, data.vocabulary, store) if path is not None]
    return {home.resolve(): "home folder", **dict.fromkeys(apart, "data")}


def _identity(
    resolved: Resolved, job: dict[str, Any], snapshot: Snapshot, environment: dict[str, str]
) -> dict[str, Any]:
    """All that shapes the result. Names, tags, card, tracking, backend, port and price do not; paths do by content."""
    return {
        "job": job,
        "compute": resolved.compute.model_dump(mode="json", exclude={"master_port", "price_per_hour", "size"}),
        "snapshot": snapshot.digest,
        "entry": resolved.spec.code.entry,
        "environment": environment,
        "variables": resolved.spec.environment.variables,
    }


def _training(
    job: PretrainConfig, data: DataFingerprint | StoreManifest, start: Link | EarlierPhase | None
) -> dict[str, Any]:
    """What of a pretraining shapes the result."""
    config = job.model_dump(mode="json", exclude={"card", *OBSERVERS})
    config["data"] = _text(job.data, data)
    config["init_from"] = start.weights if isinstance(start, Link) else None
    config["phase_from"] = start.digest if isinstance(start, EarlierPhase) else None
    return config


def _text(data: TextConfig, found: DataFingerprint | StoreManifest) -> dict[str, Any]:
    """A section of text, with content in place of paths: that of a store, or of files and how they are read."""
    section = not_shaping(data.model_dump(mode="json")) | {"store": None}
    if isinstance(found, StoreManifest):
        section["text"] = found.key
    else:
        sources = [{**told, "path": None} for told in section["text"] if isinstance(told, dict)]
        section["text"] = [found.sha256, *sources]
    vocabulary = data.vocabulary
    section["vocabulary"] = hashlib.sha256(vocabulary.read_bytes()).hexdigest() if vocabulary else None
    return section


def _hash(identity: dict[str, Any]) -> str:
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]


def _disk_warnings(need: int, folder: Path, what: str) -> list[str]:
    """A warning if the disk that a folder is on, or will be, has less than `need` bytes free."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free >= need:
        return []
    where = f"need up to {bytes_text(need)}, have {bytes_text(free)} free where {folder} lies"
    return [f"the disk may fill up with {what}: {where}"]


def _vocab_size(job: PretrainConfig) -> int:
    """Pieces of the vocabulary: the lines of its file, or the most that one trained on the text can have."""
    if job.data.vocabulary is None:
        return job.data.vocab_size
    try:
        pieces = job.data.vocabulary.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{job.data.vocabulary} is not UTF-8",
            facts={"where": f"data.vocabulary, byte {problem.start}"},
            fix="--set data.vocabulary=PATH of a WordPiece vocab.txt",
        ) from None
    return len(pieces) + len(job.data.add_tokens)
