"""Predictions on their way to a file: a part for each window, whole or not there; joined into one when all are.

Parts lie beside the file, in FILE.parts, with the identity of what is predicted: an earlier start's parts count if that
is the same.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from train_jobs.artifacts.files import sync, write_text
from train_jobs.config import DataError
from train_jobs.engine.runtime import storage

if TYPE_CHECKING:
    import pyarrow as pa

Record = dict[str, Any]

IDENTITY = "identity.json"
BLOCK = 1 << 20
VECTOR_DIGITS = 8  # of a number of a vector, written as text


class Form(ABC):
    """A form that files of predictions have.

    Args:
        kept: columns of the input, which come first.
        fields: of a record, with their types in Parquet.
    """

    def __init__(self, kept: Sequence[str], fields: Mapping[str, pa.DataType]) -> None:
        self.kept, self.fields = list(kept), dict(fields)

    @abstractmethod
    def write(self, path: Path, records: Sequence[Record]) -> None:
        """A part."""

    @abstractmethod
    def join(self, parts: Sequence[Path], path: Path) -> None:
        """All parts, in their order."""


class JsonLines(Form):
    """A JSON object on each line."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("w", encoding="utf-8") as stream:
            for record in records:
                stream.write(json.dumps(record, ensure_ascii=False, default=_plain) + "\n")

    def join(self, parts: Sequence[Path], path: Path) -> None:
        with path.open("wb") as whole:
            self._head(whole)
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, whole, BLOCK)

    def _head(self, whole: Any) -> None:
        """What stands before the rows."""


class Tsv(JsonLines):
    """Tabs between fields, no quoting: a tab, line end or backslash inside a text is written as JSON does; what is no
    text or number is JSON."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            for record in records:
                stream.write("\t".join(map(_field, record.values())) + "\n")

    def _head(self, whole: Any) -> None:
        whole.write(("\t".join([*self.kept, *self.fields]) + "\n").encode())


class Parquet(Form):
    """Parquet; a column of the input has the type that its values have."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {}
        for name in self.kept:
            try:
                columns[name] = pa.array([record[name] for record in records])
            except pa.ArrowException as problem:
                raise self._mixed(name, problem) from None
        for name, type_ in self.fields.items():
            columns[name] = pa.array([record[name] for record in records], type_)
        pq.write_table(pa.table(columns), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pa.unify_schemas([pq.read_schema(part) for part in parts], promote_options="permissive")
        except pa.ArrowException as problem:
            raise self._mixed(", ".join(self.kept), problem) from None
        with pq.ParquetWriter(path, schema) as whole:
            for part in parts:
                whole.write_table(pq.read_table(part).cast(schema))

    def _mixed(self, names: str, problem: Exception) -> DataError:
        return DataError(
            f"column {names} has values of several types, and one of Parquet has one",
            facts={"why": str(problem).splitlines()[0]},
            fix="--set output=predictions.jsonl",
        )


class Npz(Form):
    """numpy's archive with one array, `embeddings`: fp32 [rows, size]."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("wb") as stream:
            np.save(stream, np.stack([record["embedding"] for record in records]))

    def join(self, parts: Sequence[Path], path: Path) -> None:
        arrays = [np.load(part, mmap_mode="r") for part in parts]
        shape = (sum(map(len, arrays)), arrays[0].shape[1])
        with zipfile.ZipFile(path, "w") as archive, archive.open("embeddings.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(stream, header)
            for array in arrays:
                stream.write(array.astype("<f4", copy=False).tobytes())


FORMS: dict[str, type[Form]] = {".jsonl": JsonLines, ".tsv": Tsv, ".parquet": Parquet, ".npz": Npz}


class Parts:
    """The parts of a file of predictions.

    Args:
        path: the file that they become.
        form: what it is.
    """

    def __init__(self, path: Path, form: Form) -> None:
        self.path, self._form = path, form
        self.folder = path.with_name(f"{path.name}.parts")

    def begin(self, identity: Mapping[str, Any], *, anew: bool) -> bool:
        """Makes the folder ready; what is there of something else goes.

        Args:
            identity: what decides the predictions, as JSON has it.
            anew: nothing that is there counts.

        Returns:
            Whether an earlier start's parts count.
        """
        with storage.storage_errors(self.folder, "the predictions"):
            if not anew and _read(self.folder / IDENTITY) == identity:
                return True
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            storage.write_json(self.folder / IDENTITY, identity)
            return False

    def has(self, number: int) -> bool:
        """Whether the part of a window is there, which then is whole."""
        return self._judged_file(number).is_file()

    def write(self, number: int, records: Sequence[Record], judged: Mapping[str, Any]) -> None:
        """The part of a window, and what was judged of it, which is written last."""
        path = self._file(number)
        with storage.storage_errors(self.folder, "the predictions"):
            _whole(path, lambda temporary: self._form.write(temporary, records))
            write_text(self._judged_file(number), json.dumps(judged))

    def judged(self, count: int) -> list[dict[str, Any]]:
        """What was judged of each of so many windows."""
        return [json.loads(self._judged_file(number).read_text(encoding="utf-8")) for number in range(count)]

    def join(self, count: int) -> None:
        """Makes the file of its parts."""
        parts = [self._file(number) for number in range(count)]
        with storage.storage_errors(self.path.parent, "the predictions"):
            _whole(self.path, lambda temporary: self._form.join(parts, temporary))

    def remove(self) -> None:
        """What is no longer needed."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}{self.path.suffix}"

    def _judged_file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"


def _whole(path: Path, write: Callable[[Path], None]) -> None:
    """A file that is there only when it is written and on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _field(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"')
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no words for: vectors, and dates of Parquet."""
    if isinstance(value, np.ndarray):
        return [float(f"{number:.{VECTOR_DIGITS}g}") for number in value.tolist()]
    return str(value)
