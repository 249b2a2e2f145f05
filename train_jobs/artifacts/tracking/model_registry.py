"""Models by their name in an MLflow registry, models:/NAME@ALIAS or models:/NAME/VERSION, as folders on this machine.

A name is looked up when a job is submitted or started; from then on the model is the folder of one version, whose path
has the version's number and the hash of its files: CACHE/mlflow-models/NAME/3-0123456789abcdef. The version may be of
this package, of MLflow's flavour `transformers`, or a plain Hugging Face folder. Its files are copied and never loaded
by MLflow, which would run the code and the pickles of a version. MLflow is imported only to look up a name.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import yaml

from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.files import file_sha256, link_or_copy, read_object, sync_all, write_text
from train_jobs.artifacts.lineage import LINEAGE_FILE
from train_jobs.artifacts.tracking.mlflow_store import relocate_artifacts, sqlite_path
from train_jobs.config.errors import ConflictError, SpecError
from train_jobs.config.trust import SIGNATURE

FOLDER = "mlflow-models"  # of the cache
MLMODEL = "MLmodel"
NOT_OF_THE_MODEL = {
    *(MLMODEL, "predictor.py", "requirements.txt", "conda.yaml", "python_env.yaml", "registered_model_meta"),
    *("input_example.json", "serving_input_example.json"),
}
"""Files that MLflow puts next to those of a Hugging Face folder."""
SUFFIXES = (".json", ".txt", ".md", ".sig", ".safetensors", ".jinja", ".onnx", ".onnx.data")
PICKLED = "pytorch_model.bin"  # copied, so that the rules of trust decide, and only without safetensors
TOKENIZER = "components/tokenizer"  # of a version with the flavour `transformers`
NAME = re.compile(r"models:/(?P<model>[^/:@]+)(/(?P<version>[0-9]+|latest)|@(?P<alias>[^/:@]+))")
CACHED = re.compile(FOLDER + r"/(?P<model>[^/]+)/(?P<version>[0-9]+)-[0-9a-f]{16}$")
LISTED = 20
RUN = "run"  # of a record: handle of the run that made the model


class Registry(NamedTuple):
    """An MLflow registry, and where its models are kept on this machine."""

    uri: str
    """URI of the registry."""
    tracking_uri: str
    """URI of the tracking server, through which some registries deliver files."""
    cache: Path
    """Folder of the models."""


def is_registry_name(value: object) -> bool:
    """Return whether a value is meant as a name in an MLflow registry, valid or not."""
    return isinstance(value, str) and value.startswith("models:/")


def registry_identity(folder: Path) -> tuple[str, str] | None:
    """Return name and version of a model in the cache of a registry; None: another folder."""
    found = CACHED.search(folder.absolute().as_posix())
    return (f"models:/{unquote(found['model'])}", found["version"]) if found else None


def cached_copies(cache: Path, matches: Callable[[str], bool]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the copies in a cache of models of some runs, from any registry: a folder, and the records that lead to it.

    Folders that no longer exist are included: a killed deletion leaves their records.

    A registry numbers versions itself, so equal names and versions do not identify a model. The
    handle of its run does: in its lineage, or in the record, since a model can have been registered without a lineage.

    Args:
        cache: folder of the cache.
        matches: whether the handle of a run is that of one of the runs.
    """
    for place in sorted((cache / FOLDER).glob("*")):
        folders = {path: list[Path]() for path in sorted(place.glob("*")) if CACHED.search(path.as_posix())}
        runs = {path: {_run_of(path)} for path in folders}
        for path in sorted(place.glob(".*.json")):
            record = read_object(path) or {}
            folder = place / Path(str(record.get("folder"))).name
            folders.setdefault(folder, []).append(path)
            runs.setdefault(folder, set()).add(record.get(RUN))
        for path, records in folders.items():
            if not path.is_dir() or any(run is not None and matches(run) for run in runs[path]):
                yield path, records


def _run_of(folder: Path) -> str | None:
    """Return the handle of the run that made a model, by its lineage; None: the lineage names none."""
    try:
        return (read_object(folder / LINEAGE_FILE) or {})["links"][-1]["facts"]["run"] or None
    except (LookupError, TypeError):
        return None


def registry_of(environ: Mapping[str, str], tracking_uri: str | None, default: str | None, cache: Path) -> Registry:
    """Return the registry to look up names in: MLFLOW_REGISTRY_URI, else the tracking URI.

    Args:
        environ: environment variables.
        tracking_uri: as the user set it. None: MLFLOW_TRACKING_URI.
        default: without either. None: it must be set.
        cache: see `Registry`.

    Raises:
        SpecError: none of them is set.
    """
    tracking = tracking_uri or environ.get("MLFLOW_TRACKING_URI") or default or environ.get("MLFLOW_REGISTRY_URI")
    if tracking is None:
        raise SpecError("cannot look up a model in MLflow: no registry is set", fix="export MLFLOW_TRACKING_URI=URI")
    return Registry(environ.get("MLFLOW_REGISTRY_URI") or tracking, tracking, cache)


def registry_folder(name: str, registry: Registry) -> Path:
    """Return the folder with the files of a version, copied into the cache unless it is there.

    Args:
        name: models:/NAME@ALIAS, models:/NAME/VERSION or models:/NAME/latest.
        registry: where to look it up.

    Raises:
        ConflictError: the cached files are not those of the version any more.
        SpecError: no such version exists, it is no BERT, or the registry does not answer.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    found = NAME.fullmatch(name)
    if found is None:
        raise SpecError(
            f"invalid model {name!r}", facts={"need": "models:/NAME@ALIAS or models:/NAME/VERSION"}, fix="--model NAME"
        )
    if (store := sqlite_path(registry.uri)) is not None:
        relocate_artifacts(store)  # of a moved or copied home
    client = MlflowClient(tracking_uri=registry.tracking_uri, registry_uri=registry.uri)
    try:
        version = _version(client, **found.groupdict())
        if version is None:
            raise _unknown(client, found["model"], name, registry)
        place = registry.cache / FOLDER / quote(found["model"], safe="")
        record = place / f".{version.version}-{_key(registry, version)}.json"
        if record.is_file() and (known := place / json.loads(record.read_text())["folder"]).is_dir():
            return known
        with scratch_folder("copy", _made(place)) as scratch:
            return _kept(_copy(registry, version, scratch / "model"), place, version, record)
    except (MlflowException, OSError) as problem:
        if isinstance(problem, OSError) and problem.filename is not None:  # of this machine, such as a full disk
            raise
        raise SpecError(
            f"cannot read the model {name} from the MLflow registry",
            facts={
                "registry": _shown(registry.uri),
                "why": _first_line(problem).replace(registry.uri, _shown(registry.uri)),
            },
            fix="check MLFLOW_TRACKING_URI or tracking.uri, then repeat the command",
        ) from None


def _version(client: Any, model: str, version: str | None, alias: str | None) -> Any:
    """Return a version of a model; None: it does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        if alias is not None:
            return client.get_model_version_by_alias(model, alias)
        if version != "latest":
            return client.get_model_version(model, str(version))
        every = client.search_model_versions(f"name = '{model}'")
        return max(every, key=lambda one: int(one.version), default=None)
    except MlflowException as problem:
        # an alias that does not exist is an invalid parameter, a version or a model a missing resource
        if problem.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _unknown(client: Any, model: str, name: str, registry: Registry) -> SpecError:
    """Return the error for a version that does not exist, with those that do."""
    every = client.search_model_versions(f"name = '{model}'")
    facts = {"registry": _shown(registry.uri)}
    if not every:
        names = sorted(one.name for one in client.search_registered_models(max_results=LISTED))
        return SpecError(
            f"unknown model {model!r} in the MLflow registry",
            facts={**facts, "have": ", ".join(names) or "no models"},
            fix="orchestrator model register RUN --name NAME",
        )
    aliases = client.get_registered_model(model).aliases
    have = [
        *(f"@{alias} = {number}" for alias, number in sorted(aliases.items())),
        *sorted((str(one.version) for one in every), key=int),
    ]
    newest = max(int(one.version) for one in every)
    return SpecError(
        f"unknown version {name}", facts={**facts, "have": ", ".join(have[:LISTED])}, fix=f"models:/{model}/{newest}"
    )


def _key(registry: Registry, version: Any) -> str:
    """Return what identifies a version: a model that was deleted and made again has the same numbers."""
    facts = [registry.uri, version.name, str(version.version), version.creation_timestamp, version.source]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class _Files:
    """The files of a version, of which local ones are linked."""

    def __init__(self, registry: Registry, version: Any) -> None:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=registry.tracking_uri, registry_uri=registry.uri)
        source = client.get_model_version_download_uri(version.name, str(version.version))
        parts = urlsplit(source)
        self.local = Path(unquote(parts.path)) if parts.scheme in ("", "file") else None
        # Databricks delivers files only by the name of their version. Of other registries, MLflow would look up that
        # name in the registry of the environment.
        named = registry.uri.startswith(("databricks", "uc:"))
        uri = f"models:/{version.name}/{version.version}" if named else source
        more = {"tracking_uri": registry.tracking_uri, "registry_uri": registry.uri}
        self._store = None if self.local else get_artifact_repository(uri, **more)

    def names(self, folder: str = "") -> Iterator[str]:
        """Yield the names of the files of a folder, without those of its folders."""
        if self.local is not None:
            found = self.local / folder
            # a link may lead out of the version
            inside = found.is_dir() and found.resolve().is_relative_to(self.local.resolve())
            yield from sorted(path.name for path in found.iterdir() if path.is_file()) if inside else ()
            return
        assert self._store is not None
        for one in self._store.list_artifacts(folder or None):
            name = PurePosixPath(one.path).name
            if not one.is_dir and name not in ("", ".", ".."):
                yield name

    def copy(self, name: str, target: Path) -> None:
        """Copy or link a file.

        Args:
            name: its path in the version.
            target: the new file.
        """
        if self.local is not None:
            link_or_copy(self.local / name, target)
            return
        assert self._store is not None
        with scratch_folder("file", target.parent.parent) as scratch:
            Path(self._store.download_artifacts(name, str(scratch))).rename(target)


def _copy(registry: Registry, version: Any, folder: Path) -> Path:
    """Copy the Hugging Face folder of a version to a new folder, and return it.

    Raises:
        SpecError: the version is not a BERT of transformers.
    """
    files = _Files(registry, version)
    folder.mkdir()
    base = _base(files, version, folder)
    prefix = "" if base == "." else f"{base}/"
    names = [name for name in files.names("" if base == "." else base) if name not in NOT_OF_THE_MODEL]
    safe = any(name.endswith(".safetensors") for name in names)
    for name in names:
        if name.endswith(SUFFIXES) or (name == PICKLED and not safe):
            files.copy(prefix + name, folder / name)
    signed = _signed_names(folder / SIGNATURE)
    for name in signed:
        target = folder / name
        if not target.exists() and target.name in files.names(f"{base}/{PurePosixPath(name).parent}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            files.copy(prefix + name, target)
    for name in () if signed else files.names(TOKENIZER):  # a signed model verifies only without further files
        if name.endswith(SUFFIXES) and not (folder / name).exists():
            files.copy(f"{TOKENIZER}/{name}", folder / name)
    if not (folder / "config.json").is_file():
        raise _no_bert(version, "it has no config.json")
    if not signed:
        _write_vocabulary(folder)
    return folder


def _signed_names(signature: Path) -> list[str]:
    """Return the names in a signature that are inside of its folder; none if it is missing or damaged."""
    try:
        payload = (read_object(signature) or {})["dsseEnvelope"]["payload"]
        names = [str(one["name"]) for one in json.loads(base64.b64decode(payload))["predicate"]["resources"]]
    except (LookupError, TypeError, ValueError, RecursionError):  # a check of the signature reports it
        return []
    paths = [PurePosixPath(name) for name in names if "\0" not in name]
    return [str(path) for path in paths if path.name and not path.is_absolute() and ".." not in path.parts]


def _base(files: _Files, version: Any, folder: Path) -> str:
    """Return the folder of a version with its config.json and weights.

    Raises:
        SpecError: MLmodel has no flavour `transformers`, or cannot be read.
    """
    if MLMODEL not in files.names():
        return "."
    files.copy(MLMODEL, folder / MLMODEL)
    try:
        document = yaml.safe_load((folder / MLMODEL).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        document = None
    (folder / MLMODEL).unlink()
    flavors = document.get("flavors") if isinstance(document, dict) else None
    if not isinstance(flavors, dict) or not isinstance(flavors.get("transformers"), dict):
        have = ", ".join(map(str, flavors)) if isinstance(flavors, dict) else "none that can be read"
        raise _no_bert(version, f"its flavours are {have}")
    base = str(flavors["transformers"].get("model_binary", "pipeline"))
    if PurePosixPath(base).is_absolute() or ".." in PurePosixPath(base).parts:
        raise _no_bert(version, "its MLmodel names a folder outside of the version")
    return base


def _write_vocabulary(folder: Path) -> None:
    """Write vocab.txt of a tokenizer that has only tokenizer.json, as transformers 5 saves it."""
    saved = folder / "tokenizer.json"
    if (folder / "vocab.txt").exists() or not saved.is_file():
        return
    try:
        pieces = json.loads(saved.read_text(encoding="utf-8"))["model"]["vocab"]
        text = "".join(f"{piece}\n" for piece in sorted(pieces, key=lambda piece: int(pieces[piece])))
    except (ValueError, KeyError, TypeError):  # of another kind: the reader of the folder reports what it lacks
        return
    (folder / "vocab.txt").write_text(text, encoding="utf-8")


def _kept(copy: Path, place: Path, version: Any, record: Path) -> Path:
    """Move a complete copy to its place, named by its content; an equal one may be there already.

    Raises:
        ConflictError: it should have other files, by the tag that `orchestrator model register` gave it.
    """
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    hashes = {path.relative_to(copy).as_posix(): file_sha256(path) for path in files}
    stated = version.tags.get("orchestrator.weights")
    if stated and stated not in hashes.values():
        raise ConflictError(
            f"the weights of version {version.version} of model {version.name} are not those that were registered",
            facts={"need": stated},
            fix="orchestrator model register RUN --name NAME, and use that version",
        )
    digest = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    target = place / f"{version.version}-{digest[:16]}"
    sync_all(copy)  # the record is on the disk soon, and must not name empty files after a power cut
    try:
        copy.rename(target)
    except OSError:  # another process was faster
        if not target.is_dir():
            raise
    made_by = {RUN: version.tags["orchestrator.handle"]} if "orchestrator.handle" in version.tags else {}
    write_text(record, json.dumps({"folder": target.name, "sha256": digest, **made_by}))
    return target


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _no_bert(version: Any, why: str) -> SpecError:
    return SpecError(
        f"version {version.version} of model {version.name} is not a BERT of transformers",
        facts={"why": why, "need": "an MLflow model with the flavour transformers, or a Hugging Face folder"},
        fix="--model with another model",
    )


def _shown(uri: str) -> str:
    """Return a URI without the user and the password in it."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if parts.netloc else uri


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).strip().splitlines()), "") or type(problem).__name__
