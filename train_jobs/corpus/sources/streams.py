"""The bytes of a file, or of a range of it: counted as they leave the disk, decompressed, UTF-16 made UTF-8."""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import zlib
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from train_jobs.artifacts.text_files import Compression
from train_jobs.config.errors import DataError
from train_jobs.config.names import in_shell
from train_jobs.corpus.sources.pieces import Piece

Read = Callable[[int], None]
BLOCK = 1 << 18  # bytes read from the disk at once
MOST = 1 << 22  # bytes that a block may decompress to at once
BOM = b"\xef\xbb\xbf"
UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMMANDS = {"gzip": "gzip", "bzip2": "bzip2", "xz": "xz", "zstd": "zstd"}


def ignore(count: int) -> None:
    """Nobody wants to know how much has been read."""


class _Decompressor(Protocol):
    """One stream of a compressed file."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


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


_DECOMPRESSORS: dict[Compression, Callable[[], _Decompressor]] = {
    "gzip": _Gzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}


def open_piece(piece: Piece, read: Read) -> BinaryIO:
    """Opens a piece for reading its bytes as they were before compression.

    Args:
        piece: which file, and which bytes of it on the disk.
        read: called with the number of bytes that have been read from the disk.

    Raises:
        DataError: the file is missing or not readable; when read: its compressed data is damaged or ends too early.
    """
    return _buffered(_open(piece, read))


def open_text(piece: Piece, read: Read) -> BinaryIO:
    """Like `open_piece`, for text: what comes out is UTF-8 without a byte-order mark, whichever UTF went in.

    Raises:
        DataError: as of `open_piece`; UTF-16 that is none.
    """
    stream = open_piece(piece, read)
    if piece.start > 0:
        return stream
    head = stream.peek(3)[:3]  # type: ignore[attr-defined]  # a BufferedReader
    if head.startswith(UTF16_BOMS):
        return _buffered(_FromUtf16(stream, piece.path))
    if head == BOM:
        stream.read(len(BOM))
    return stream


def unpacked(piece: Piece) -> str:
    """The beginning of a command that needs the file's content: how to come by it."""
    return f"{_COMMANDS[piece.compression]} -dc {in_shell(piece.path)} | " if piece.compression else ""


def _buffered(raw: io.RawIOBase) -> BinaryIO:
    return io.BufferedReader(raw, BLOCK)


def _open(piece: Piece, read: Read) -> io.RawIOBase:
    disk = _Disk(piece, read)
    if piece.compression is None:
        return disk
    if piece.compression == "zstd":
        return _Zstd(disk)
    return _Unpacked(disk, _DECOMPRESSORS[piece.compression])


class _Raw(io.RawIOBase):
    """A stream of blocks of any size, as io wants it."""

    def __init__(self) -> None:
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(self._block())
        count = min(len(self._left), len(buffer))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    @abstractmethod
    def _block(self) -> bytes:
        """What comes next; empty at the end."""


class _Disk(_Raw):
    """The bytes of a piece on the disk."""

    def __init__(self, piece: Piece, read: Read) -> None:
        super().__init__()
        self.piece = piece
        self.position = piece.start
        self._read = read
        try:
            self._file = Path(piece.path).open("rb", buffering=0)  # noqa: SIM115  # closed in close()
        except FileNotFoundError:
            raise DataError(
                f"{piece.path} is gone", fix="the same command again, with --data of what there is"
            ) from None
        except PermissionError:
            raise DataError(f"cannot read {piece.path}", fix=f"chmod u+r {in_shell(piece.path)}") from None
        self._file.seek(piece.start)

    def _block(self) -> bytes:
        wanted = BLOCK if self.piece.stop is None else min(BLOCK, self.piece.stop - self.position)
        block = self._file.read(wanted)
        self.position += len(block)
        self._read(len(block))
        return block

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def damaged(self, why: object) -> DataError:
        """Compressed data that cannot be read on."""
        return DataError(
            f"{self.piece.path} is damaged: {why}",
            facts={"where": f"before byte {self.position} of the {self.piece.compression} data"},
            fix=f"{_COMMANDS[self.piece.compression or 'gzip']} -t {in_shell(self.piece.path)}; fetch the file again",
        )


class _Unpacked(_Raw):
    """The streams of a compressed file, one after another, each to its end.

    The readers of Python's library take what follows a stream and is none for the file's end: damage in a file of many
    streams, as Wikipedia's, would go unnoticed.
    """

    def __init__(self, disk: _Disk, decompressor: Callable[[], _Decompressor]) -> None:
        super().__init__()
        self._disk = disk
        self._make = decompressor
        self._stream: _Decompressor | None = None
        self._rest = b""

    def _block(self) -> bytes:
        while True:
            if self._stream is None or self._stream.needs_input:
                data = self._rest or self._disk._block()
                self._rest = b""
            else:
                data = b""
            if self._stream is None:
                data = data.lstrip(b"\0")  # padding between streams, of tapes and of xz
                if not data:
                    if self._disk_ended():
                        return b""
                    continue
                self._stream = self._make()
            elif not data and self._stream.needs_input:
                raise self._disk.damaged("it ends in the middle of its data")
            try:
                out = self._stream.decompress(data, MOST)
            except (OSError, EOFError, ValueError, lzma.LZMAError, zlib.error) as problem:
                raise self._disk.damaged(problem) from None
            if self._stream.eof:
                self._rest = self._stream.unused_data
                self._stream = None
            if out:
                return out

    def _disk_ended(self) -> bool:
        self._rest = self._disk._block()
        return not self._rest

    def close(self) -> None:
        self._disk.close()
        super().close()


class _Zstd(_Raw):
    """Frames of zstd, by Arrow's reader: Python's library has one from 3.14 on."""

    def __init__(self, disk: _Disk) -> None:
        super().__init__()
        self._disk = disk
        self._stream = pa.CompressedInputStream(pa.PythonFile(io.BufferedReader(disk, BLOCK), mode="r"), "zstd")

    def _block(self) -> bytes:
        try:
            return bytes(self._stream.read(BLOCK))
        except (OSError, pa.ArrowException) as problem:
            raise self._disk.damaged(problem) from None

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._disk.close()
        super().close()


class _FromUtf16(_Raw):
    """UTF-16 with a byte-order mark, as UTF-8 without one."""

    def __init__(self, stream: BinaryIO, path: str) -> None:
        super().__init__()
        self._stream = stream
        self._path = path
        self._decoder = codecs.getincrementaldecoder("utf-16")()
        self._done = 0

    def _block(self) -> bytes:
        while True:
            data = self._stream.read(BLOCK)
            try:
                text = self._decoder.decode(data, final=not data).encode()
            except UnicodeError as problem:
                raise DataError(
                    f"{self._path} is not UTF-16, as its beginning says",
                    facts={"where": f"between byte {self._done} and {self._done + len(data)}", "why": problem},
                    fix="fetch it again, or save it as UTF-8",
                ) from None
            self._done += len(data)
            if text or not data:
                return text

    def close(self) -> None:
        self._stream.close()
        super().close()
