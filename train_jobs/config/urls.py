"""Addresses of files in object stores: which are known, and which must not be written into a configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

STORE_AT_URL = "a token store must be a folder on a disk: training maps its files into memory"
"""The problem of a configuration whose store is a URL."""

S3, GCS, AZURE, LOCAL = "s3fs", "gcsfs", "adlfs", ""
"""Packages of fsspec that read a service; "": fsspec itself."""
PROTOCOLS = {
    "s3": S3,
    "gs": GCS,
    "gcs": GCS,
    "abfs": AZURE,
    "abfss": AZURE,
    "az": AZURE,
    "file": LOCAL,
    "memory": LOCAL,
}
"""Protocol of a URL -> package that reads it."""
_SECRET = re.compile(r"://[^/@]*:[^/@]*@|[?&][\w.-]+=")  # a password before the host, or a signature behind the path


def is_url(text: object) -> bool:
    """Return whether a value of a configuration is a URL of an object store, and not a path."""
    return isinstance(text, str) and "://" in text and protocol_of(text) in PROTOCOLS


def _place(value: object) -> object:
    if isinstance(value, str) and not is_url(value):
        return Path(value)
    return value


# Decided before validation: a plain union would report every mistake twice, once per member.
StorePlace = Annotated[Path | str, BeforeValidator(_place)]
"""A path, or a URL as text."""


def was_url(path: Path | None) -> bool:
    """Return whether a path is a URL that has lost a slash."""
    first = path.parts[0] if path is not None and path.parts else ""
    return first.endswith(":") and first.removesuffix(":") in PROTOCOLS


def protocol_of(url: str) -> str:
    """Return the part of a URL before `://`."""
    return url.partition("://")[0]


def has_secret(url: str) -> bool:
    """Return whether a URL contains a password, or parameters such as those of a signature."""
    return _SECRET.search(url) is not None
