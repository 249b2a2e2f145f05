"""The figures of a plan that prepares text: rules of thumb, since nothing but its files' sizes is known of the text."""

from __future__ import annotations

from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.text_files import Compression, part_bytes, source_files
from train_jobs.config import PrepareConfig
from train_jobs.config.base import Config

EXPANDED: dict[Compression | None, float] = {None: 1.0, "gzip": 3.0, "bzip2": 4.0, "xz": 4.0, "zstd": 3.0}
BYTES_PER_SECOND = 5_000_000  # of text, in each worker, all steps together, sentences included; bz2 and wikitext slower
WORKER_BYTES = 500_000_000
STORE_SHARE = 0.5  # of a byte of English text: a token of two bytes for every 4.5 characters, and offsets
STEPS_SHARE = 0.45  # documents compressed with zstd, and their hashes


class PrepareEstimates(Config):
    """What preparing text will need: rules of thumb, not measurements."""

    text_bytes: int
    """Text, uncompressed."""
    parts: int
    """Units of work, at least one for each source."""
    workers: int
    """Processes that share them, on all nodes."""
    seconds: float
    """How long it takes."""
    process_bytes: int
    """Memory of the workers of a node together."""
    store_bytes: int
    """The store."""
    steps_bytes: int
    """What the steps leave beside it, while it is made or if it is kept."""

    @property
    def disk_bytes(self) -> int:
        """Most that it takes of the disk."""
        return self.store_bytes + self.steps_bytes


def estimate_preparation(job: PrepareConfig, data: DataFingerprint, *, nodes: int, cores: int) -> PrepareEstimates:
    """The figures of `job`.

    Args:
        job: what is prepared.
        data: its text.
        nodes: machines.
        cores: of each; this machine's stand for all.
    """
    files = [file for source in job.data.text if source.dataset is None for file in source_files(source)]
    text = sum(int(file.path.stat().st_size * EXPANDED[file.compression]) for file in files) or data.total_bytes
    parts = max(-(-text // part_bytes(text)), len(job.data.text), 1)
    each = cores if job.data.workers == "auto" else job.data.workers
    workers = min(each * nodes, parts)
    return PrepareEstimates(
        text_bytes=text,
        parts=parts,
        workers=workers,
        seconds=text / (BYTES_PER_SECOND * workers),
        process_bytes=WORKER_BYTES * -(-workers // nodes),
        store_bytes=int(text * STORE_SHARE),
        steps_bytes=int(text * STEPS_SHARE),
    )
