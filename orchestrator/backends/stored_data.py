"""The capability of backends that keep data assets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from orchestrator.backends.capabilities import Capability


class DataAssets(ABC):
    """The data assets of one place, such as a workspace.

    A row is {name, version, type, address, created, use, versions}; `use` is what `--data` accepts.
    """

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the newest version of each asset."""

    @abstractmethod
    def row(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Return one version of an asset; None: the newest.

        Raises:
            NotFoundError: it does not exist.
        """

    @abstractmethod
    def create(self, name: str, source: str, version: str | None = None) -> dict[str, Any]:
        """Create a version of an asset, unless it exists with the same content; returns its row.

        Args:
            name: of the asset.
            source: path of a file or folder here, or an address at that place.
            version: None: a hash of the files.

        Raises:
            ConflictError: the version exists with other content.
            UsageError: the source does not exist, or has no version.
        """


class KeepsData(Capability):
    """Keeps data assets."""

    verb = "keep data assets"

    @abstractmethod
    def data_assets(self) -> DataAssets:
        """Return the data assets."""
