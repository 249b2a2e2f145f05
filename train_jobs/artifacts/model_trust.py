"""Trust in a model folder: no pickled weights without permission, and a valid signature if one is required.

The laptop checks the folder while planning, and the job again before it loads the weights. Signatures follow OpenSSF
model signing (https://github.com/sigstore/model-transparency) with an elliptic-curve key, which works offline:

    openssl ecparam -name prime256v1 -genkey -noout -out signing.pem
    openssl ec -in signing.pem -pubout -out signing.pub
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from train_jobs.artifacts.start_model import WEIGHTS
from train_jobs.config.errors import DataError, SpecError, in_shell
from train_jobs.config.trust import SIGNATURE, TrustConfig

SAFE, PICKLED = WEIGHTS
SETTING = "trust.require_signature"


def require_trusted(folder: Path, trust: TrustConfig) -> None:
    """Require that the weights of a folder may be loaded.

    Args:
        folder: Hugging Face folder of a model. A missing folder or file of weights is left to its reader.
        trust: what the user demands.

    Raises:
        DataError: its weights are a pickle without permission, or its signature is missing or invalid.
        SpecError: the key cannot be read, or model-signing is not installed.
    """
    if trust.require_signature is not None:
        verify_signature(folder, trust.require_signature)
    if (folder / PICKLED).is_file() and not (folder / SAFE).is_file() and not trust.allow_pickle:
        raise pickle_refused(folder)


def require_trusted_phase(trust: TrustConfig) -> None:
    """Require that the weights of an earlier phase may be loaded: they are in a checkpoint, which has no signature.

    Raises:
        SpecError: a signature is required.
    """
    if trust.require_signature is not None:
        raise SpecError(
            "cannot verify the signature of the earlier phase: a checkpoint has none",
            facts={"where": f"phase_from and {SETTING}"},
            fix="--from with the signed model of that run, which has no moments; or omit --require-signature",
        )


def pickle_refused(folder: Path) -> DataError:
    """Return the error for a folder whose only weights are a pickle."""
    return DataError(
        f"cannot load {folder / PICKLED}: it is a pickle, which can contain a program",
        facts={"need": SAFE, "or": "--allow-pickle, for a file from a source that you trust"},
        fix=f"orchestrator model convert {in_shell(folder)}",
    )


def sign_folder(folder: Path, key: Path) -> Path:
    """Sign all files of a model folder; return the file of the signature, which replaces an earlier one.

    Args:
        folder: folder of the model.
        key: PEM file of a private key on the curve P-256, P-384 or P-521, without a password.

    Raises:
        DataError: the folder is missing, empty, or contains a link.
        SpecError: the key cannot be used, or model-signing is not installed.
    """
    _require_package()
    from model_signing import signing

    _require_file(key, "--key")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SIGNATURE]
    if not files:
        raise DataError(f"cannot sign {folder}: it is not a folder with files", fix="name a run or a model folder")
    try:
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    except (ValueError, TypeError, AttributeError) as problem:
        raise _unusable_key(key, problem) from None
    try:
        config.set_hashing_config(_hashing()).sign(folder, folder / SIGNATURE)
    except ValueError as problem:
        raise DataError(
            f"cannot sign {folder}",
            facts={"why": _first_line(problem)},
            fix="put the files themselves into the folder, not links to them",
        ) from None
    return folder / SIGNATURE


def verify_signature(folder: Path, key: Path) -> None:
    """Require that a folder has exactly the files that the owner of a key signed.

    Args:
        folder: folder of the model, or a link to it; links inside of it are refused.
        key: PEM file of the public key.

    Raises:
        DataError: the signature is missing, of another key, or of other files.
        SpecError: the key cannot be read, or model-signing is not installed.
    """
    _require_package()
    from model_signing import verifying

    _require_file(key, SETTING)
    try:
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    except (ValueError, TypeError, AttributeError) as problem:
        raise _unusable_key(key, problem) from None
    signature = folder / SIGNATURE
    if not signature.is_file():
        fix = f"orchestrator model sign {in_shell(folder)} --key PRIVATE_KEY, by the owner of the key"
        raise DataError(f"the model is not signed: no {SIGNATURE} in {folder}", facts={"need": key}, fix=fix)
    try:
        config.set_hashing_config(_hashing()).verify(folder.resolve(), signature)
    except Exception as problem:  # for a damaged file, the library raises whatever its parsers raise
        raise DataError(
            f"the signature of {folder} is not valid",
            facts={"why": _first_line(problem), "key": key},
            fix="fetch the model again from its owner",
        ) from None


def _hashing() -> Any:
    """Return how files are hashed: all but the signature; files of git, which the library ignores, count too."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


def _require_package() -> None:
    if find_spec("model_signing") is None:
        raise SpecError(
            "cannot use signatures of models: model-signing is not installed",
            fix='pip install "bert-orchestrator[signing]"',
        )


def _require_file(key: Path, where: str) -> None:
    if not key.is_file():
        raise SpecError(f"no such file: {key}", facts={"where": where}, fix="name the PEM file of an EC key")


def _unusable_key(key: Path, problem: Exception) -> SpecError:
    return SpecError(
        f"cannot use the key {key}",
        facts={"why": _first_line(problem), "need": "PEM file of an EC key, P-256, P-384 or P-521, without a password"},
        fix="openssl ecparam -name prime256v1 -genkey -noout -out signing.pem",
    )


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
