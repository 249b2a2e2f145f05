"""Models and datasets by their names on the Hugging Face Hub, from its cache on this machine or downloaded into it.

The client is `huggingface_hub`, so HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE work as documented there. It is
imported only to look up a name. A name is looked up once, when the job is submitted or started; from then on the model
is the folder of one commit in the cache.
"""

from __future__ import annotations

import re
from pathlib import Path

from train_jobs.config.errors import DataError, SpecError, UserError

PREFIX = "hub:"
"""Prefix of a name on the Hub that could also be the name of a run."""
SERVER_ERROR = 500  # status code from which the Hub itself has failed
PATIENCE = 10.0  # seconds for the one request that asks whether the Hub can be reached
# Names without an owner that the Hub still answers. Others are names of runs: they must not leave this machine.
_WELL_KNOWN = re.compile(r"(distil)?bert-(base|large)-[a-z0-9-]+")
_NAME = re.compile(r"\w([\w.-]{0,94}\w)?(/\w([\w.-]{0,94}\w)?)?", re.ASCII)
_CONFIG = "config.json"
_VOCABULARY = "vocab.txt"
_REST = (("tokenizer_config.json",), (_VOCABULARY, "tokenizer.json"), ("model.safetensors", "pytorch_model.bin"))
_ADDED = (("tokenizer.json",), ("added_tokens.json",))  # rule and added tokens of a tokenizer that has a vocab.txt


def is_hub_name(value: object) -> bool:
    """Return whether a value is a name on the Hub: OWNER/NAME, hub:NAME, or an old well-known one (bert-base-cased)."""
    if not isinstance(value, str) or not _NAME.fullmatch(value.removeprefix(PREFIX)):
        return False
    return "/" in value or value.startswith(PREFIX) or bool(_WELL_KNOWN.fullmatch(value))


def hub_folder(name: str) -> Path:
    """Return the folder of the Hub's cache with the files of a model, all of one commit.

    Cached files are used without the network; their commit was `main` when the model was downloaded. Missing files of
    that commit are downloaded, and of weights in several formats only the first.

    Args:
        name: NAME or OWNER/NAME, also with hub: in front.

    Raises:
        SpecError: the model does not exist, or a file is neither cached nor available.
    """
    from huggingface_hub import constants, errors, try_to_load_from_cache

    name = name.removeprefix(PREFIX)
    try:
        if (config := _path(name, _CONFIG, None)) is not None:
            # A model in the cache is used without the network, even if it was downloaded without all of these files.
            is_cached = isinstance(try_to_load_from_cache(name, _VOCABULARY, revision=config.parent.name), str)
            for alternatives in _REST if is_cached else (*_ADDED, *_REST):
                _fetch_first(name, alternatives, config.parent.name)
            return config.parent
        what, why = f"{name} on the Hugging Face Hub is not a model of transformers", f"it has no {_CONFIG}"
        fix = "give another name, or a folder with a model"
    except errors.LocalEntryNotFoundError as problem:
        what = f"cannot download the model {name}, and it is not in the cache of the Hugging Face Hub"
        why, fix = _reason(problem), f"with a network connection: hf download {name}; or give a folder with a model"
    except errors.RepositoryNotFoundError as problem:
        what = f"unknown model {name}: the Hugging Face Hub does not have it, or you have no access"
        why, fix = (
            _reason(problem),
            "give a name from huggingface.co/models; for a private model: hf auth login",
        )
    except (errors.HfHubHTTPError, errors.HTTPError, OSError) as problem:  # type: ignore[attr-defined]  # httpx's
        what = f"cannot download the model {name} from the Hugging Face Hub"
        why, fix = _reason(problem), "repeat the command, or give a folder with a model"
    raise SpecError(what, facts={"cache": constants.HF_HUB_CACHE, "why": why}, fix=fix)


def dataset_commit(name: str) -> str:
    """Return the current commit of a dataset on the Hub.

    Args:
        name: NAME[:CONFIGURATION][@SPLIT].

    Raises:
        DataError: the dataset does not exist, or there is no network.
    """
    from huggingface_hub import HfApi, errors

    repository = name.partition("@")[0].partition(":")[0]
    try:
        return str(HfApi().dataset_info(repository).sha)
    except (errors.HfHubHTTPError, errors.HTTPError, errors.OfflineModeIsEnabled, OSError, ValueError) as problem:  # type: ignore[attr-defined]
        raise DataError(
            f"cannot find the dataset {repository} on the Hugging Face Hub",
            facts={"why": _reason(problem)},
            fix="give a name from huggingface.co/datasets; without a network give `path` with files",
        ) from None


def _fetch_first(name: str, alternatives: tuple[str, ...], commit: str) -> None:
    """Download the first of these files that the model has.

    If it has none, the reader of the folder reports it. Without a network, a cached later one is enough.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    offline: Exception | None = None
    for file in alternatives:
        try:
            if _path(name, file, commit) is not None:
                return
        except LocalEntryNotFoundError as problem:
            offline = problem
    if offline is not None:
        raise offline


def _path(name: str, file: str, commit: str | None) -> Path | None:
    """Return a file in the cache, downloaded if it is missing; None if the model has no such file.

    Raises:
        LocalEntryNotFoundError: it is not in the cache, and there is no network.
    """
    from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(name, file, revision=commit)
    if isinstance(cached, str):
        return Path(cached)
    if cached is not None:  # the cache records that the file does not exist
        return None
    if commit is None:
        _require_answer(name)
    try:
        return Path(hf_hub_download(name, file, revision=commit))
    except errors.LocalEntryNotFoundError:
        raise
    except errors.EntryNotFoundError:
        return None


def _require_answer(name: str) -> None:
    """Ask the Hub once for a file of a model: downloads repeat a failed request for half a minute.

    Raises:
        LocalEntryNotFoundError: it does not answer.
        HfHubHTTPError: it has failed.
    """
    from huggingface_hub import constants, errors, get_session, hf_hub_url
    from huggingface_hub.utils._http import hf_raise_for_status

    if constants.HF_HUB_OFFLINE:
        raise errors.LocalEntryNotFoundError("HF_HUB_OFFLINE is set: offline")
    try:
        answer = get_session().head(hf_hub_url(name, _CONFIG), timeout=PATIENCE)
    except (errors.HTTPError, OSError) as problem:  # type: ignore[attr-defined]  # httpx's
        raise errors.LocalEntryNotFoundError(_reason(problem)) from problem
    if answer.status_code >= SERVER_ERROR:  # others, such as a login that is needed, are for the download
        hf_raise_for_status(answer)


def _reason(problem: BaseException) -> str:
    """Return the first line of the root cause of an error."""
    while (cause := problem.__cause__ or problem.__context__) is not None and not isinstance(cause, UserError):
        problem = cause
    return str(problem).strip().partition("\n")[0]
