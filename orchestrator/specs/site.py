"""Sites: settings, machines, prices and data of backends, as far as planning needs them.

Planning uses the site of a backend and never the backend itself: a site is quick to import, while Azure's SDK takes
more than a second. `Site` itself is this machine; other sites derive from it. Other packages add sites by the
entry-point group `orchestrator.sites`, NAME = "package.module:Class", under the name of their backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import create_model

from orchestrator.specs.compute import ComputeSpec, ResolvedCompute, gpus_of_machine, usable_cores, usable_memory
from orchestrator.specs.job import JobSpec
from orchestrator.support.plugins import find, installed
from train_jobs.artifacts.layers import KeyPath
from train_jobs.config.fields import Config

Rule = tuple[str, bool, str]
"""Dotted key, whether it has no effect in this spec, and why."""

THIS_MACHINE = f"{__name__}:Site"
GROUP = "orchestrator.sites"
_BUILTIN = {"azure": "orchestrator.backends.azure.site:AzureSite", "debug": THIS_MACHINE, "local": THIS_MACHINE}


class Site:
    """This machine; the site of backends that do not define their own.

    Args:
        name: name of the backend, and of its section in specs.
    """

    options: ClassVar[type[Config] | None] = None
    """The backend's section in specs; None: the backend has no settings."""
    compute_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of `compute` that other sites ignore."""
    data_key: ClassVar[KeyPath] = ()
    """Key that names data at the site, which replaces data of this machine; empty: the site has no data."""
    this_python: ClassVar[bool] = True
    """Whether jobs run with the Python and the packages that plan them."""
    own_tracking: ClassVar[bool] = False
    """Whether the site opens the MLflow runs itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def machines(self, wanted: ComputeSpec, environ: Mapping[str, str], *, gpus: bool) -> ResolvedCompute:
        """Return the machines of a job, with every `auto` resolved.

        Args:
            wanted: the section `compute`.
            environ: environment variables, which select the visible GPUs.
            gpus: whether the job uses GPUs.

        Raises:
            SpecError: the machines lack a requested resource; its fact `key` is the dotted key.
        """
        count, gpu = gpus_of_machine(environ) if gpus else (0, None)
        memory = usable_memory()
        share = memory // wanted.nodes if memory else None  # all nodes are this machine
        return wanted.resolve(gpus=count, cores=usable_cores(), gpu=gpu, memory_bytes=share)

    def completed(self, spec: JobSpec, environ: Mapping[str, str], *, gpus: bool) -> ComputeSpec:
        """Return the section `compute` with what the site knows of existing machines that the spec only names.

        Args:
            spec: the spec.
            environ: environment variables.
            gpus: whether the job uses GPUs.
        """
        return spec.compute

    def price(self, compute: ResolvedCompute, home: Path, *, spot: bool) -> ResolvedCompute:
        """Return the machines with their list price, unless the user set a price.

        Args:
            compute: the machines.
            home: the home folder, where refreshed prices are stored.
            spot: whether the machines have the tier spot.
        """
        return compute

    def stale_facts(self, compute: ResolvedCompute, home: Path) -> Iterable[str]:
        """Return warnings about prices and sizes of these machines that are too old to rely on.

        Args:
            compute: the machines, with their price.
            home: the home folder, where refreshed prices are stored.
        """
        return ()

    def size_names(self) -> Sequence[str]:
        """Return the names of the machine sizes that a job may ask for."""
        return ()

    def sizes(self, home: Path, gpus: str | None, region: str | None) -> list[dict[str, Any]]:
        """Return machine sizes, each with its GPUs, memory and list price.

        Args:
            home: the home folder, where refreshed prices are stored.
            gpus: `MODEL[:N]`: only sizes with at least N GPUs of this model; None: all sizes.
            region: fetch the current prices and sizes of this region; None: use the stored ones.

        Raises:
            UsageError: no size has GPUs of that model, or the region does not exist.
            ServiceError: the prices cannot be refreshed.
        """
        return []

    def environment(self, spec: JobSpec) -> dict[str, str]:
        """Return the version of Python and of each package that shapes a result, as the job will find them."""
        return spec.environment.describe()

    def remote_data(self, spec: JobSpec) -> str | None:
        """Return the name of the data at the site that replaces data of this machine."""
        return None

    def is_remote(self, text: str) -> bool:
        """Return whether `text` names data at the site, and not a path of this machine."""
        return False

    def address_problem(self, text: str) -> str | None:
        """Return the problem of an address that is neither a path of this machine nor complete; None: it has none."""
        return None

    def ignored(self, spec: JobSpec) -> Iterable[Rule]:
        """Return keys that have no effect at this site."""
        return ()

    def warnings(self, spec: JobSpec) -> Iterable[str]:
        """Return other warnings about a job at this site."""
        return ()


def site_of(name: str) -> Site:
    """Return the site of a backend; for an unknown name this machine, since loading the backend reports the error.

    Raises:
        ServiceError: the site of another package cannot be loaded.
    """
    return cast(Site, find(name, _BUILTIN, GROUP, "the site of backend", name) or Site(name))


def builtin_sites() -> list[Site]:
    """Return the sites of this package's backends."""
    return [site_of(name) for name in _BUILTIN]


def spec_model(spec: type[JobSpec], named: Iterable[str] | None = None) -> type[JobSpec]:
    """Return the model of a kind's specs with the sections of the backends, each under the backend's name.

    Args:
        spec: keys of the kind, without the backends' sections.
        named: sections and backends that a spec names. Other packages are searched only if one of these names is
            unknown to the kind and to this package, because entry points are slow to read. None: with the sections of
            all installed backends.

    Raises:
        ServiceError: the site of another package cannot be loaded.
    """
    names = set(_BUILTIN)
    if named is None or not names.union(spec.model_fields).issuperset(named):
        names |= installed(GROUP).keys() - spec.model_fields.keys()
    return _with_sections(spec, tuple(sorted(name for name in names if site_of(name).options is not None)))


@cache
def _with_sections(spec: type[JobSpec], names: tuple[str, ...]) -> type[JobSpec]:
    sections = {name: options for name in names if (options := site_of(name).options) is not None}
    model = create_model(
        spec.__name__,
        __base__=spec,
        __doc__=spec.__doc__,
        __module__=spec.__module__,
        **{name: (options, options()) for name, options in sections.items()},  # type: ignore[call-overload]
    )
    model.sections = names
    return cast(type[JobSpec], model)
