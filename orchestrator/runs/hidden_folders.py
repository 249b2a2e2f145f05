"""Hidden folders next to those of runs and sweeps: drafts, which are renamed once complete, and deletions.

Their names end with the process that made them, `.NAME.PID-STARTED-BOOT`, and that process holds the lock of its draft,
whose lock file comes first. The next submission or list can therefore delete what a killed process left, without
waiting until it is old.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from train_jobs.artifacts.drafts import OLD_SECONDS, Owner, boot_token
from train_jobs.artifacts.files import hold, is_held, try_lock

LOCK = "lock"  # the first file of a draft, and the lock of the run that it becomes
DELETED = ".deleted."
STILL_OPEN = (errno.ENOTEMPTY, errno.EBUSY)  # of a folder whose deleted files are open; of such a file
TRIES = 100  # of creating a folder that other processes may delete before it is locked


@contextmanager
def locked_draft(path: Path) -> Iterator[Path]:
    """Create a hidden folder next to `path`, and hold its lock; the folder is deleted at the end unless renamed.

    Raises:
        OSError: it cannot be created.
    """
    draft = path.with_name(f".{path.name}.{Owner.current()}")
    with ExitStack() as stack:
        for attempt in range(TRIES):
            draft.mkdir(parents=True)
            try:
                stack.enter_context(hold(draft / LOCK))
                break
            except FileNotFoundError:
                # another container, which does not see this process, deleted the folder while it was still empty
                if attempt == TRIES - 1:
                    raise
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def deletion_of(path: Path) -> Path:
    """Return the name that a folder gets before it is deleted: half of a folder must never be visible."""
    return path.with_name(f"{DELETED}{path.name}.{Owner.current()}")


def delete_folder(path: Path) -> None:
    """Hide a folder by renaming it, and delete it, see `remove_tree`. What stays is for `abandoned`.

    Raises:
        OSError: it cannot be renamed, or something in it cannot be deleted.
    """
    remove_tree(path.rename(deletion_of(path)))


def remove_tree(path: Path) -> None:
    """Delete a folder; of a link, the folder that it leads to, and the link.

    The folder stays, empty, if a process has a file in it open on NFS or FUSE.

    Those file systems only rename a deleted file that is open (`.nfs...`, `.fuse_hidden...`), and delete it once it is
    closed; until then its folder cannot be deleted.

    Raises:
        OSError: something cannot be deleted, for another reason.
    """
    tree = path.resolve() if path.is_symlink() else path  # users move large runs to another disk, and link them
    shutil.rmtree(tree, ignore_errors=True)  # all that can be: an open file must not keep the others
    try:
        shutil.rmtree(tree)
    except FileNotFoundError:
        pass
    except OSError as problem:
        if problem.errno not in STILL_OPEN:
            raise
        return
    if tree != path:  # the link last: by it, the next command finds what a killed one left
        path.unlink(missing_ok=True)


def abandoned(place: Path, *, older_than: float = OLD_SECONDS) -> list[Path]:
    """Return the hidden folders of a folder whose processes have died.

    Args:
        place: folder of runs or sweeps.
        older_than: seconds after which a folder counts, if nothing is known of its process.
    """
    # the change time, which a rename sets: a folder that is renamed for its deletion may be months old
    before, here, found = time.time() - older_than, boot_token(), []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                continue
            with suppress(OSError):  # deleted or renamed meanwhile
                path, owner = place / entry.name, Owner.of(Path(entry.name))
                known = owner is not None and owner.boot == here
                dead = not owner.lives if owner and known else entry.stat(follow_symlinks=False).st_ctime < before
                linked = entry.is_symlink() and entry.name.startswith(DELETED)  # may lead nowhere by then
                if (linked or entry.is_dir(follow_symlinks=False)) and dead and not is_held(path / LOCK):
                    found.append(path)
    return sorted(found)


def delete_abandoned(place: Path) -> None:
    """Delete the drafts and deletions of killed processes, as far as possible."""
    for path in abandoned(place):
        with suppress(OSError):
            _delete(path)


def _delete(path: Path) -> None:
    if path.name.startswith(DELETED):
        remove_tree(path)  # two processes may delete it together
        return
    try:
        stream = (path / LOCK).open("r+b")
    except FileNotFoundError:
        if Owner.of(path) is None:  # of an earlier version, which locked no draft
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rmdir()  # killed before its first file; fails if its process just creates that
        return
    with stream:
        if try_lock(stream):
            # one rename, after which no process takes it for its draft
            shutil.rmtree(path.rename(deletion_of(path)), ignore_errors=True)
