"""Objects by name: built-in ones from a table of addresses, those of other packages from an entry-point group.

Each is imported when it is first needed. A name of built_in always means built_in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def find(name: str, built_in: Mapping[str, str], group: str, noun: str, *arguments: Any) -> Any:
    """Return the object of a name, called with `arguments` if there are any; None: the name is unknown.

    Args:
        name: the name.
        built_in: name -> address, `package.module:ATTRIBUTE`, of the objects that this package ships.
        group: entry-point group of other packages.
        noun: role of the object in messages, such as `backend`.
        arguments: of a class, those of its constructor.

    Raises:
        ServiceError: the other package cannot be imported, or its constructor fails.
    """
    if name in built_in:
        found = imported(built_in[name])
        return found(*arguments) if arguments else found
    if (point := installed(group).get(name)) is None:
        return None
    try:
        found = point.load()
        return found(*arguments) if arguments else found
    except Exception as problem:  # code of another package may raise anything on import
        from orchestrator.support.errors import ServiceError  # loads pydantic, which `--help` does without

        distribution = point.dist.name if point.dist else point.value
        raise ServiceError(
            f"cannot load {noun} {name}",
            facts={"where": point.value, "reason": f"{type(problem).__name__}: {problem}"},
            fix=f"pip install --force-reinstall {distribution}",
        ) from problem


def imported(address: str) -> Any:
    """Return the object at `package.module:ATTRIBUTE`."""
    module, _, attribute = address.partition(":")
    return getattr(import_module(module), attribute)


class _Lazy:
    """Descriptor of a class attribute that is imported on access, see `lazy`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __get__(self, instance: object, owner: type) -> Any:
        # On a class it returns itself: when a subclass is created, ABCMeta reads the abstract names of its bases, and
        # would import them all.
        return self if instance is None else imported(self.address)


def lazy(address: str) -> Any:
    """Return a class attribute for the object at `package.module:ATTRIBUTE`, imported when an instance is asked for it.

    A function is called without `self`.
    """
    return _Lazy(address)


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Takes about 40 ms: call it only when no built-in name fits."""
    return _installed(group, tuple(sys.path))


@cache
def _installed(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return `installed` for one `sys.path`, the key of the cache: a notebook may extend it while it runs."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}
