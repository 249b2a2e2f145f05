"""The bytes of a file, or of a range of it: counted as they are read, decompressed, UTF-16 converted to UTF-8."""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from train_jobs.artifacts.text_files import Compression
from train_jobs.config.errors import DataError, in_shell

Read = Callable[[int], None]  # called with the number of bytes read from the disk since the last call
BLOCK = 1 << 18  # bytes per read from the disk
MOST = 1 << 22  # bytes per decompressed block, at most
BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Piece:
    """A file, a range of one, or a file of a dataset: what a reader reads at a time."""

    path: str
    """Path of the file; of a dataset, its name."""
    compression: Compression | None = None
    start: int = 0
    """First byte on the disk; of Parquet, the first row group; of a dataset, the number of its file."""
    stop: int | None = None
    """End of the range, exclusive. None: the end of the file."""
    commit: str | None = None
    """Of a dataset: its commit when the work was planned."""


def ignore(count: int) -> None:
    """Ignore how many bytes have been read."""


@contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Raise DataError for a file that is missing or must not be read."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(
            f"cannot read {path}: no such file", fix="repeat the command with --data of the existing files"
        ) from None
    except PermissionError:
        raise DataError(f"cannot read {path}", fix=f"chmod u+r {in_shell(path)}") from None


def open_piece(piece: Piece, read: Read) -> BinaryIO:
    """Open a piece for reading its decompressed bytes.

    Args:
        piece: which file, and which bytes of it on the disk.
        read: called with the number of bytes that have been read from the disk.

    Raises:
        DataError: the file is missing or not readable; when read: its compressed data is damaged or truncated.
    """
    disk = _Disk(piece, read)
    if piece.compression is None:
        return io.BufferedReader(disk, BLOCK)
    blocks = _zstd_blocks(disk) if piece.compression == "zstd" else _blocks(disk, _DECOMPRESSORS[piece.compression])
    return io.BufferedReader(_BlockStream(blocks, disk), BLOCK)


def open_text(piece: Piece, read: Read) -> BinaryIO:
    """Open a piece of text like `open_piece`, as UTF-8 without a byte-order mark, from UTF-8 or UTF-16.

    Raises:
        DataError: as by `open_piece`; invalid UTF-16.
    """
    stream = open_piece(piece, read)
    if piece.start > 0:
        return stream
    head = stream.peek(3)[:3]  # type: ignore[attr-defined]  # a BufferedReader
    if head.startswith(UTF16_BOMS):
        return io.BufferedReader(_BlockStream(_utf16_blocks(stream, piece.path), stream), BLOCK)
    if head == BOM:
        stream.read(len(BOM))
    return stream


def unpacked(piece: Piece) -> str:
    """Return the beginning of a shell command that decompresses the file; empty if it is not compressed."""
    return f"{piece.compression} -dc {in_shell(piece.path)} | " if piece.compression else ""


class _Disk(io.RawIOBase):
    """The bytes of a piece on the disk."""

    def __init__(self, piece: Piece, read: Read) -> None:
        self.piece, self.position, self._read = piece, piece.start, read
        with file_errors(piece.path):
            self._file = Path(piece.path).open("rb", buffering=0)  # noqa: SIM115  # closed in close()
        self._file.seek(piece.start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = len(buffer) if self.piece.stop is None else min(len(buffer), self.piece.stop - self.position)
        count = self._file.readinto(memoryview(buffer)[:wanted])
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
            fix=f"fetch the file again, then test it: {self.piece.compression} -t {in_shell(self.piece.path)}",
        )


class _BlockStream(io.RawIOBase):
    """A stream of blocks of any size.

    Args:
        blocks: the content.
        source: closed with the stream.
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
    """zlib's decompressor with the interface of those of bz2 and lzma."""

    def __init__(self) -> None:
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
    "xz": lzma.LZMADecompressor,
}


def _blocks(disk: _Disk, decompressor: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Yield the content of all streams of a compressed file, each read to its end.

    Python's own readers treat anything after a stream that is not a stream as the end of the file. In a file of many
    streams, such as Wikipedia's, damage would go unnoticed.
    """
    data = b""
    while data := data.lstrip(b"\0") or disk.read(BLOCK) or b"":  # tapes and xz pad between streams with zeros
        if data[0] == 0:
            continue
        stream = decompressor()
        while not stream.eof:
            if stream.needs_input and not data and not (data := disk.read(BLOCK) or b""):
                raise disk.damaged("it ends in the middle of its data")
            try:
                block = stream.decompress(data, MOST)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as problem:
                raise disk.damaged(problem) from None
            data = b""
            yield block
        data = stream.unused_data


def _zstd_blocks(disk: _Disk) -> Iterator[bytes]:
    """Yield the content of zstd frames, read by Arrow: Python's library has a reader from version 3.14 on."""
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
                f"{path} is not valid UTF-16, though it begins with its byte-order mark",
                facts={"where": f"between byte {done} and {done + len(data)}", "why": problem},
                fix="fetch it again, or save it as UTF-8",
            ) from None
        done += len(data)
