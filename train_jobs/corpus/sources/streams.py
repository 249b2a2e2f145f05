"""Streams of a file or a range of it: bytes are counted, decompressed, and converted from UTF-16 to UTF-8."""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from train_jobs.artifacts.regular_files import SpecialFileError, open_regular
from train_jobs.artifacts.remote_files import RemoteFile, text_path
from train_jobs.artifacts.text_documents import LONGEST_FILE
from train_jobs.artifacts.text_files import UTF16_MARKS, Compression
from train_jobs.artifacts.unreadable import unreadable
from train_jobs.config.errors import DataError, in_shell
from train_jobs.config.privacy import problem_text

Read = Callable[[int], None]  # called with the number of bytes read from the disk since the last call
BLOCK = 1 << 18  # bytes per read from the disk
MOST = 1 << 22  # maximum bytes of a decompressed block: limits memory for highly compressed data
XZ_MEMORY = 256 << 20  # bytes; `xz -9` needs 65 MiB
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Piece:
    """The input of one call of a reader: a file, a range of one, or a file of a dataset."""

    path: str
    """Path or URL of the file, or name of the dataset."""
    compression: Compression | None = None
    """Compression of the file; None: not compressed."""
    start: int = 0
    """First byte on the disk; for Parquet the first row group, for a dataset the number of its file."""
    stop: int | None = None
    """End of the range, exclusive. None: the end of the file."""
    version: str | None = None
    """When the work was planned: the commit of a dataset, the version of a file by URL. None: a path."""


def ignore(count: int) -> None:
    """Ignore the number of bytes: a `Read` callback that does nothing."""


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Convert errors of opening a file to errors that the user can fix.

    Args:
        path: path of the file, for messages.

    Raises:
        DataError: the file is missing or no regular file, or permission to read it is missing.
    """
    try:
        yield
    except FileNotFoundError:
        raise DataError(
            f"cannot read {path}: no such file", fix="repeat the command with --data and the existing files"
        ) from None
    except (PermissionError, IsADirectoryError, SpecialFileError) as problem:
        raise unreadable(Path(path), problem) from None


def open_piece(piece: Piece, read: Read) -> BinaryIO:
    """Open a piece for reading its decompressed bytes.

    Args:
        piece: file, compression and range of bytes on the disk.
        read: called with the bytes read from the disk since its last call.

    Raises:
        DataError: the file is missing or not readable. Reading the stream raises it for damaged or truncated data.
    """
    disk = _Disk(piece, read)
    if piece.compression is None:
        return io.BufferedReader(disk, BLOCK)
    blocks = _zstd_blocks(disk) if piece.compression == "zstd" else _blocks(disk, _DECOMPRESSORS[piece.compression])
    return io.BufferedReader(_BlockStream(blocks, disk), BLOCK)


def open_text(piece: Piece, read: Read) -> BinaryIO:
    """Open a piece of UTF-8 or UTF-16 text for reading it as UTF-8 without a byte-order mark.

    Args:
        piece: see `open_piece`.
        read: see `open_piece`.

    Raises:
        DataError: see `open_piece`. Reading the stream also raises it for invalid UTF-16.
    """
    stream = open_piece(piece, read)
    if piece.start > 0:
        return stream
    head = stream.peek(3)[:3]  # type: ignore[attr-defined]  # a BufferedReader
    if head.startswith(UTF16_MARKS):
        return io.BufferedReader(_BlockStream(_utf16_blocks(stream, piece.path), stream), BLOCK)
    if head == BOM:
        stream.read(len(BOM))
    return stream


def bounded_lines(stream: BinaryIO, piece: Piece) -> Iterator[bytes]:
    """Yield the lines of a stream.

    Raises:
        DataError: a line is longer than 32 MiB: a compressed file of a megabyte can hold one of a gigabyte.
    """
    while line := stream.readline(LONGEST_FILE + 1):
        require_text(line, piece)
        yield line


def require_text(line: bytes | str, piece: Piece) -> None:
    """Require that a line, or the text of an article, is at most 32 MiB.

    Raises:
        DataError: it is longer.
    """
    if len(line) > LONGEST_FILE:
        raise DataError(
            f"{piece.path} has a line of more than {LONGEST_FILE >> 20} MiB",
            fix="check that it is text; break its lines, or put each document on a line of its own",
        )


def unpacked(piece: Piece) -> str:
    """Return the start of a shell pipeline that decompresses the file; empty if it is not compressed."""
    return f"{piece.compression} -dc {in_shell(piece.path)} | " if piece.compression else ""


class _Disk(io.RawIOBase):
    """Raw stream of a piece's bytes on the disk."""

    def __init__(self, piece: Piece, read: Read) -> None:
        self.piece, self.position, self._read = piece, piece.start, read
        with file_errors(piece.path):
            file = text_path(piece.path)
            self._file = cast(
                io.RawIOBase,
                file.open_until(piece.stop) if isinstance(file, RemoteFile) else open_regular(file, buffering=0),
            )  # closed in close()
        self._file.seek(piece.start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = len(buffer) if self.piece.stop is None else min(len(buffer), self.piece.stop - self.position)
        count = self._file.readinto(memoryview(buffer)[:wanted]) or 0
        self.position += count
        self._read(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def damaged(self, why: object) -> DataError:
        """Return the error for compressed data that cannot be decompressed."""
        return DataError(
            f"{self.piece.path} is damaged: {why}",
            facts={"where": f"before byte {self.position} of the {self.piece.compression} data"},
            fix=f"download the file again, then test it: {self.piece.compression} -t {in_shell(self.piece.path)}",
        )


class _BlockStream(io.RawIOBase):
    """Raw stream over blocks of any size.

    Args:
        blocks: the content.
        source: stream to close together with this one.
    """

    def __init__(self, blocks: Iterator[bytes], source: io.IOBase | BinaryIO) -> None:
        self._blocks, self._source = blocks, source
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            if (block := next(self._blocks, None)) is None:
                return 0
            self._left = memoryview(block)
        count = min(len(self._left), len(buffer))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


class _Gzip:
    """zlib's decompressor with the interface of `bz2.BZ2Decompressor` and `lzma.LZMADecompressor`."""

    def __init__(self) -> None:
        # + 16: expect gzip's header and checksum instead of zlib's.
        self._inner = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


_Decompressor = _Gzip | bz2.BZ2Decompressor | lzma.LZMADecompressor
_DECOMPRESSORS: dict[Compression, Callable[[], _Decompressor]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, memlimit=XZ_MEMORY),
}


def _blocks(disk: _Disk, decompressor: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Yield the content of all streams of a compressed file.

    Args:
        disk: compressed bytes.
        decompressor: called for each stream.

    Raises:
        DataError: the data is damaged or truncated.
    """
    # Not `gzip.open` and similar: they treat invalid data after the first stream as the end of the file. In a file of
    # many streams, such as Wikipedia's, damage would go unnoticed.
    data = b""
    while data := data.lstrip(b"\0") or disk.read(BLOCK) or b"":  # tapes and xz pad between streams with zeros
        if data[0] == 0:
            continue
        stream = decompressor()
        while not stream.eof:
            if stream.needs_input and not data and not (data := disk.read(BLOCK) or b""):
                raise disk.damaged("truncated")
            try:
                block = stream.decompress(data, MOST)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as problem:
                raise disk.damaged(problem) from None
            data = b""
            yield block
        data = stream.unused_data


def _zstd_blocks(disk: _Disk) -> Iterator[bytes]:
    """Yield the content of zstd frames, read by Arrow."""
    # The standard library reads zstd only from Python 3.14 on, and Arrow is a dependency anyway.
    with pa.CompressedInputStream(pa.PythonFile(io.BufferedReader(disk, BLOCK), mode="r"), "zstd") as stream:
        while True:
            try:
                block = bytes(stream.read(BLOCK))
            except (OSError, pa.ArrowException) as problem:
                raise disk.damaged(problem) from None
            if not block:
                return
            yield block


def _utf16_blocks(stream: BinaryIO, path: str) -> Iterator[bytes]:
    """Yield UTF-16 with a byte-order mark as UTF-8 without one."""
    decoder = codecs.getincrementaldecoder("utf-16")()
    done, data = 0, b"\0"
    while data:
        data = stream.read(BLOCK)
        try:
            yield decoder.decode(data, final=not data).encode()
        except UnicodeError as problem:
            raise DataError(
                f"{path} begins with a UTF-16 byte-order mark but is not valid UTF-16",
                facts={"where": f"between byte {done} and {done + len(data)}", "why": problem_text(problem)},
                fix="download it again, or save it as UTF-8",
            ) from None
        done += len(data)
