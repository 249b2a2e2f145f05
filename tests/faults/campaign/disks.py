"""Disks that are full, read-only or damaged."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.campaign.scene import Scene, processes, signal_all, stored_files

IMAGE_BYTES = 256 << 20
SMALLEST = 16 << 10  # bytes; 0 would mean no limit
ROOMY = "1g"
SETTLING = 60.0  # seconds that processes have to end on a read-only disk


def needs_root() -> str:
    """Return why nothing can be mounted here; empty: it can."""
    return "" if os.geteuid() == 0 else "only root can mount file systems"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def small_disk(scene: Scene) -> Iterator[None]:
    """Put the home on a disk with room for a part of what an undisturbed run leaves there."""
    size = max(int(scene.moment * scene.reference.bytes), SMALLEST)
    scene.detail = f"disk of {size >> 10} KiB"
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(scene.home))
    try:
        yield
    finally:
        _run("umount", "-l", str(scene.home))


def add_space(scene: Scene) -> bool:
    """Free space, as a user does before the next command."""
    _run("mount", "-o", f"remount,size={ROOMY}", str(scene.home))
    return True


@contextmanager
def own_disk(scene: Scene) -> Iterator[None]:
    """Put the home on a disk that becomes read-only after an error, as the root disks of most distributions do."""
    image = scene.home.with_suffix(".image")
    with image.open("wb") as stream:
        stream.truncate(IMAGE_BYTES)
    try:
        _run("mkfs.ext4", "-q", "-O", "^has_journal", str(image))
        _run("mount", "-o", "loop,errors=remount-ro", str(image), str(scene.home))
        try:
            yield
        finally:
            _run("umount", "-l", str(scene.home))
    finally:
        image.unlink()


def make_read_only(scene: Scene) -> bool:
    """Let the kernel see an error of the disk."""
    words = ["findmnt", "-no", "SOURCE", str(scene.home)]
    device = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()).name
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("a fault\n")
    return True


def repair(scene: Scene) -> bool:
    """Check the disk and mount it again, once nothing uses it; what does not end is killed, as by a reboot."""
    until = time.monotonic() + SETTLING
    while (using := processes(scene.home)) and time.monotonic() < until:
        time.sleep(0.2)
    if using:
        scene.hanging = f"{', '.join(sorted(using.values()))} did not end on a read-only disk"
        signal_all(scene.home)
        time.sleep(1.0)
    _unmount(scene.home, until=time.monotonic() + SETTLING)
    image = str(scene.home.with_suffix(".image"))
    with suppress(subprocess.CalledProcessError):  # exit code 1: errors were corrected
        _run("e2fsck", "-fy", image)
    _run("mount", "-o", "loop,errors=remount-ro", image, str(scene.home))
    return True


def _unmount(home: Path, until: float) -> None:
    """Unmount a disk, but not lazily: one that is still in use would stay read-only when mounted again.

    A process that ends has no environment any more while its files are still open, so `processes` no longer sees it.
    """
    while True:
        try:
            return _run("umount", str(home))
        except subprocess.CalledProcessError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def damage(change: Callable[[Scene, Path], None]) -> Callable[[Scene], bool]:
    """Return a fault that kills all processes and damages any file of a checkpoint, store or prediction."""

    def hit(scene: Scene) -> bool:
        killed = signal_all(scene.home)
        files = [] if _completed(scene.home) else stored_files(scene.home)
        if killed and files:
            chosen = scene.draw.choice(files)
            scene.detail = str(chosen.relative_to(scene.home))
            change(scene, chosen)
        return bool(killed and files)

    return hit


def _completed(home: Path) -> bool:
    """Return whether the job had completed: of what remains, only the copy to MLflow was killed."""
    places = [*home.glob("runs/[!.]*/state.json"), *home.glob("sweeps/[!.]*/state.json")]
    states = [json.loads(path.read_text())["state"] for path in places]
    return bool(states) and set(states) == {"completed"}


def flip(scene: Scene, path: Path) -> None:
    """Flip a bit."""
    content = bytearray(path.read_bytes())
    content[scene.draw.randrange(len(content))] ^= 1 << scene.draw.randrange(8)
    path.write_bytes(content)


def tear(scene: Scene, path: Path) -> None:
    """Cut a file at any length."""
    os.truncate(path, scene.draw.randrange(path.stat().st_size))
