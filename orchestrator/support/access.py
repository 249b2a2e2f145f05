"""Access to the home folder: by its owner alone, or by a group that the owner has chosen.

Every folder of the home has a default ACL, from which the kernel takes the modes of everything that is created in it,
by any process, library or thread and whatever its umask (acl(5), object creation and default ACLs). Files that a user
asks for elsewhere follow the umask. On a file system without ACLs, our own processes take a umask of 077.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.support.errors import StorageError, UsageError
from orchestrator.support.home import is_command
from train_jobs.artifacts.mounts import reporting_write_errors
from train_jobs.config.errors import did_you_mean, in_shell

ACL = "system.posix_acl_default"
PRIVATE_MODE, SHARED_MODE = 0o700, 0o2770  # setgid: what is created in a shared home belongs to its group
PRIVATE_UMASK = 0o077
UNUSABLE = re.compile(r"\?|%[0-9A-Fa-f]{2}")  # in a path: SQLAlchemy ends the path of a store, or decodes it
MOVE_HOME = "set ORCHESTRATOR_HOME to another folder"
_OWNER, _GROUP, _OTHERS = 0x01, 0x04, 0x20  # tags of entries, linux/posix_acl.h


def _acl(group: int) -> bytes:
    """Return a default ACL in the format of linux/posix_acl_xattr.h: the owner may do everything, others nothing.

    Args:
        group: permissions of the group, 0 to 7.
    """
    entries = ((_OWNER, 7), (_GROUP, group), (_OTHERS, 0))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, allowed, 0xFFFFFFFF) for tag, allowed in entries)


_PRIVATE, _SHARED = _acl(0), _acl(7)


def open_home(home: Path, *, create: bool = True) -> None:
    """Create the home folder, if it is missing, and make sure that other users cannot enter it.

    A home of an earlier version, which other users could read, becomes private with all its files; one line on stderr
    reports that. A home that cannot be created is no error here: not every command writes to it.

    Args:
        home: absolute path.
        create: False: only check and close a home that exists.

    Raises:
        StorageError: MLflow cannot have a store in it; or it is a file, belongs to another user, can be replaced by
            another user, or cannot be made private.
    """
    if UNUSABLE.search(str(home)):
        raise _refusal(home, "its path has a ? or an escape such as %20, which MLflow reads as part of an address")
    if create:
        _make(home)
    try:
        found = home.stat()
    except FileNotFoundError:
        return
    except OSError as problem:
        raise _refusal(home, str(problem.strerror).lower()) from None
    if not stat.S_ISDIR(found.st_mode):
        raise _refusal(home, "it is a file")
    _check_parents(home)
    shared = bool(found.st_mode & stat.S_ISGID) and _handed_down(home) == _SHARED
    if found.st_uid != os.geteuid():
        if shared and found.st_gid in _groups():
            return
        facts = {"owner": user_name(found.st_uid), "you": user_name(os.geteuid())}
        raise _refusal(home, "it belongs to another user", facts=facts)
    if is_command() and not _has_acls(home):
        os.umask(PRIVATE_UMASK)
    open_bits = found.st_mode & (0o007 if shared else 0o077)
    if open_bits or (_has_acls(home) and _handed_down(home) != (_SHARED if shared else _PRIVATE)):
        _close(home, shared=shared)
    if open_bits:
        print(
            f"home folder {home} was open to other users ({stat.S_IMODE(found.st_mode):04o}):"
            f" it and everything in it is now {'closed to all but its group' if shared else 'private'}",
            file=sys.stderr,
            flush=True,
        )


def shared_group(home: Path) -> str | None:
    """Return the name of the group that a home folder is shared with; None: it is private, or does not exist."""
    try:
        found = home.stat()
    except OSError:
        return None
    if not found.st_mode & stat.S_ISGID or _handed_down(home) != _SHARED:
        return None
    try:
        return grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        return str(found.st_gid)


def share_home(home: Path, group: str) -> None:
    """Give a group full access to a home folder: its members can read, change and run everything in it.

    Args:
        home: absolute path.
        group: name of the group.

    Raises:
        UsageError: the group does not exist, or this user is not in it.
        StorageError: the home is another user's, or its file system has no ACLs or is read-only.
    """
    open_home(home)
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        known = _group_names()
        raise UsageError(
            f"unknown group {group!r}{did_you_mean(group, known)}", facts={"yours": ", ".join(known)}, fix="groups"
        ) from None
    if number not in _groups():
        raise UsageError(
            f"cannot share the home folder with group {group}: you are not in it",
            facts={"yours": ", ".join(_group_names())},
            fix=f"ask an administrator for: usermod -aG {group} {user_name(os.geteuid())}; then sign in again",
        )
    _require_owner(home)
    if not _has_acls(home):
        raise _refusal(home, "its file system has no ACLs, which sharing needs")
    with reporting_write_errors(f"cannot share home folder {home}", home):
        _apply(home, shared=True, group=number)


def unshare_home(home: Path) -> None:
    """Close a home folder to all other users.

    Raises:
        StorageError: the home is another user's.
    """
    open_home(home)
    _require_owner(home)
    _close(home, shared=False)


def open_entries(home: Path) -> int:
    """Return how many files and folders of this user in a home folder grant other users more than the home does."""
    if not home.is_dir():
        return 0
    banned = 0o007 if shared_group(home) else 0o077
    # Linkers make libraries executable for all: of a file that others cannot read, that grants nothing.
    return sum(1 for mode in _modes(home.resolve()) if mode & banned & (0o777 if stat.S_ISDIR(mode) else 0o666))


def child_umask(folder: Path) -> int:
    """Return the umask for a process that writes to a folder of the home; -1: the folder itself sets the modes."""
    return -1 if _has_acls(folder) else PRIVATE_UMASK


def user_name(uid: int) -> str:
    """Return the name of a user; the number of one that this machine does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def process_owner(pid: int) -> str:
    """Return the name of the user of a process; `nobody` of one that has finished."""
    try:
        return user_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return "nobody"


def _refusal(home: Path, why: str, *, facts: Mapping[str, object] | None = None, fix: str = MOVE_HOME) -> StorageError:
    return StorageError(f"cannot use home folder {home}: {why}", facts=facts, fix=fix)


def _make(home: Path) -> None:
    """Create the home and its parents, which others may read as usual."""
    with suppress(OSError):
        for folder in reversed(home.parents):
            folder.mkdir(mode=0o755, exist_ok=True)
        home.mkdir(mode=PRIVATE_MODE)
        _hand_down(home, _PRIVATE)


def _check_parents(home: Path) -> None:
    """Refuse a home with all other files of the user, and one that any user could replace with a folder of their own.

    Raises:
        StorageError: the user's home directory is in it; or a parent is writable for all users, and not sticky as /tmp
            is.
    """
    mine = Path("~").expanduser()
    if mine.resolve().is_relative_to(home.resolve()):  # by real paths: a link or `..` may lead there
        fix = f"export ORCHESTRATOR_HOME={in_shell(mine / '.orchestrator')}"
        raise _refusal(home, "it contains all your other files", fix=fix)
    for folder in {*home.parents, *home.resolve().parents}:
        found = folder.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise _refusal(
                home,
                "any user can replace it",
                facts={"where": f"{folder} is writable for all users ({stat.S_IMODE(found.st_mode):04o})"},
                fix=f"chmod o-w {in_shell(folder)}, or {MOVE_HOME}",
            )


def _require_owner(home: Path) -> None:
    if home.stat().st_uid != os.geteuid():
        raise _refusal(home, "only its owner can change who has access", fix=f"ask {user_name(home.stat().st_uid)}")


def _groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}


def _group_names() -> list[str]:
    return sorted(entry.gr_name for entry in grp.getgrall() if entry.gr_gid in _groups())


def _handed_down(folder: Path) -> bytes | None:
    """Return the default ACL of a folder; None: it has none."""
    try:
        return os.getxattr(folder, ACL)
    except OSError:
        return None


def _has_acls(folder: Path) -> bool:
    """Return whether the file system of a folder has ACLs."""
    try:
        os.getxattr(folder, ACL)
    except OSError as problem:
        return problem.errno != errno.ENOTSUP
    return True


def _hand_down(folder: Path | int, acl: bytes) -> None:
    try:
        os.setxattr(folder, ACL, acl)
    except OSError as problem:
        if problem.errno != errno.ENOTSUP:
            raise


def _close(home: Path, *, shared: bool) -> None:
    """Close a home and everything in it to others.

    Raises:
        StorageError: it stays open.
    """
    why = "its file system has no modes"
    try:
        _apply(home, shared=shared)
    except OSError as problem:
        why = str(problem.strerror).lower()
    if home.stat().st_mode & (0o007 if shared else 0o077):
        raise _refusal(home, f"it is open to other users, and cannot be closed: {why}")


def _apply(home: Path, *, shared: bool, group: int = -1) -> None:
    """Set owner group, modes and default ACLs of a home and everything in it, as far as it is this user's.

    Args:
        home: the folder.
        shared: whether the group has access.
        group: number of the group; -1: unchanged.
    """
    acl = _SHARED if shared else _PRIVATE
    if not shared:
        home.chmod(PRIVATE_MODE)  # first: from here on, no other user can enter
    top = home.resolve()  # fwalk does not follow links, and a home may be one
    for path, _, files, place in os.fwalk(top):
        if path != str(top):
            with suppress(PermissionError):  # another user's
                _change(place, shared=shared, group=group)
                _hand_down(place, acl)
        for name in files:
            with suppress(OSError), _opened(name, place) as handle:  # deleted meanwhile, or another user's
                _change(handle, shared=shared, group=group)
    # last: a home that has the ACL is finished, one that has not is done again by the next command
    if group != -1:
        os.chown(top, -1, group)
    top.chmod(SHARED_MODE if shared else PRIVATE_MODE)
    _hand_down(top, acl)


@contextmanager
def _opened(name: str, place: int) -> Iterator[int]:
    """Open an entry of an open folder; a link itself, not its target, which may be elsewhere."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=place)
    try:
        yield handle
    finally:
        os.close(handle)


def _change(handle: int, *, shared: bool, group: int) -> None:
    """Set mode and owner group of an open file or folder; a shared one grants the group what its owner may do."""
    found = os.fstat(handle)
    if stat.S_ISLNK(found.st_mode):
        return
    path, mode = f"/proc/self/fd/{handle}", found.st_mode & 0o700
    if shared:
        mode |= mode >> 3 | (stat.S_ISGID if stat.S_ISDIR(found.st_mode) else 0)
    if group not in {-1, found.st_gid}:
        os.chown(path, -1, group)
    if mode != stat.S_IMODE(found.st_mode):
        os.chmod(path, mode)  # noqa: PTH101, a path of the kernel


def _modes(top: Path) -> Iterator[int]:
    """Yield the modes of a folder and everything in it: without links, and only what is this user's to change."""
    for _, _, files, place in os.fwalk(top):
        found = [os.fstat(place)]
        for name in files:
            with suppress(OSError):  # deleted meanwhile
                found.append(os.stat(name, dir_fd=place, follow_symlinks=False))
        yield from (one.st_mode for one in found if one.st_uid == os.geteuid() and not stat.S_ISLNK(one.st_mode))
