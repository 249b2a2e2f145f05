"""Prediction files: one part per window, joined into one file once all windows are predicted.

The parts are in the folder FILE.parts, with the identity of the predictions. A later start reuses them if its identity
is the same. Each part has a marker with the score inputs of its window, and with the hashes of both; a part that does
not match its marker is written again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from train_jobs.artifacts.csv_tables import tsv_text
from train_jobs.artifacts.drafts import draft
from train_jobs.artifacts.files import content_record, has_content, read_object, sync, write_text
from train_jobs.config import DataError, SpecError
from train_jobs.config.privacy import problem_text
from train_jobs.engine.runtime import storage

Record = dict[str, Any]

IDENTITY = "identity.json"
OWN_NAME = re.compile(r"\d{8}\.|\.")  # of parts, markers and drafts
BLOCK = 1 << 20
JSON_TYPES = (dict, list, bool, int, float, np.ndarray, type(None))  # others are texts, such as dates of Parquet
VECTOR_DIGITS = 8  # significant digits of a vector's numbers in text formats


class OutputFormat(ABC):
    """Format of prediction files.

    Args:
        kept: columns copied from the input, which come first.
        fields: fields of a record, with types as `arrow_type` reads them.
    """

    def __init__(self, kept: Sequence[str], fields: Mapping[str, Any]) -> None:
        self.kept, self.fields = list(kept), dict(fields)

    @abstractmethod
    def write(self, path: Path, records: Sequence[Record]) -> None:
        """Write a part.

        Args:
            path: path of the part.
            records: records of the window, in the order of rows.

        Raises:
            DataError: the format cannot store the values of a copied column.
        """

    @abstractmethod
    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Join all parts, in their order.

        Args:
            parts: paths of the parts.
            path: path of the joined file.

        Raises:
            DataError: the format cannot store the values of a copied column.
        """


class JsonLines(OutputFormat):
    """A JSON object on each line."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("w", encoding="utf-8") as stream:
            for record in records:
                stream.write(_json(record) + "\n")

    def join(self, parts: Sequence[Path], path: Path) -> None:
        with path.open("wb") as joined:
            self._head(joined)
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, joined, BLOCK)

    def _head(self, stream: Any) -> None:
        """Write the header of the joined file, if the format has one."""


class Tsv(JsonLines):
    """TSV without quoting: texts escape tabs, line ends and backslashes like JSON; other values are JSON."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            for record in records:
                stream.write("\t".join(map(_field, record.values())) + "\n")

    def _head(self, stream: Any) -> None:
        stream.write(("\t".join([*self.kept, *self.fields]) + "\n").encode())


class Csv(JsonLines):
    """CSV as RFC 4180 and spreadsheets read it: texts are quoted where they must be, lists and tables are JSON."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows([_csv_field(value) for value in record.values()] for record in records)

    def _head(self, stream: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerow([*self.kept, *self.fields])
        stream.write(text.getvalue().encode())


class Parquet(OutputFormat):
    """Parquet; a column copied from the input has the type of its values."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        """Write a part; see `OutputFormat.write`.

        Raises:
            DataError: a copied column has values of several types.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {}
        for name in self.kept:
            try:
                columns[name] = _kept_column([record[name] for record in records])
            except (pa.ArrowException, OverflowError) as problem:
                raise self._mixed(name, problem) from None
        for name, kind in self.fields.items():
            columns[name] = pa.array([record[name] for record in records], arrow_type(kind))
        pq.write_table(pa.table(columns), path)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Join all parts; see `OutputFormat.join`.

        Raises:
            DataError: a copied column has other types in other parts.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        # A part whose column has no value, or only whole numbers, has another type than the others.
        try:
            schemas = [pq.read_schema(part) for part in parts]
            schema = pa.unify_schemas(schemas, promote_options="permissive")
            for number, field in enumerate(schema):
                # pyarrow takes int64 for both kinds of whole numbers, which cannot hold the large ones
                if field.type == pa.int64() and any(one.field(field.name).type == pa.uint64() for one in schemas):
                    schema = schema.set(number, field.with_type(pa.uint64()))
            with pq.ParquetWriter(path, schema) as whole:
                for part in parts:
                    whole.write_table(pq.read_table(part).cast(schema))
        except pa.ArrowException as problem:
            raise self._mixed(", ".join(self.kept), problem) from None

    def _mixed(self, names: str, problem: Exception) -> DataError:
        return DataError(
            f"cannot write Parquet: column {names} has values of several types",
            facts={"why": problem_text(problem).splitlines()[0]},
            fix="--set output=predictions.jsonl",
        )


def _kept_column(values: Sequence[Any]) -> Any:
    """Return a column that is copied from the input.

    Raises:
        ArrowException, OverflowError: its values have no common type.
    """
    import pyarrow as pa

    try:
        return pa.array(values)
    except OverflowError:  # whole numbers are int64 unless a type is given
        return pa.array(values, pa.uint64())


class Npz(OutputFormat):
    """numpy's archive with one array, `embeddings`: fp32 [rows, size]."""

    def write(self, path: Path, records: Sequence[Record]) -> None:
        with path.open("wb") as stream:
            np.save(stream, np.stack([record["embedding"] for record in records]))

    def join(self, parts: Sequence[Path], path: Path) -> None:
        arrays = [np.load(part, mmap_mode="r") for part in parts]
        # The header precedes the data and contains the number of rows, so all parts are opened first; they are only
        # mapped.
        shape = (sum(map(len, arrays)), arrays[0].shape[1])
        # Written as a stream instead of numpy.savez, which needs all vectors in memory. zip64: more than 2 GiB.
        with zipfile.ZipFile(path, "w") as archive, archive.open("embeddings.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(stream, header)
            for array in arrays:
                stream.write(array.astype("<f4", copy=False).tobytes())


OUTPUT_FORMATS: dict[str, type[OutputFormat]] = {
    ".jsonl": JsonLines,
    ".csv": Csv,
    ".tsv": Tsv,
    ".parquet": Parquet,
    ".npz": Npz,
}


def arrow_type(kind: Any) -> Any:
    """Return the type of a Parquet column.

    Args:
        kind: str, float or int; [kind], a list; {name: kind}, a struct; or (np.float32, size), a vector.
    """
    import pyarrow as pa

    if isinstance(kind, dict):
        return pa.struct([(name, arrow_type(inner)) for name, inner in kind.items()])
    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, tuple):
        return pa.list_(pa.from_numpy_dtype(kind[0]), kind[1])
    return {str: pa.string(), float: pa.float64(), int: pa.int64()}[kind]


class PredictionParts:
    """The parts of a prediction file.

    Args:
        path: the joined file.
        output_format: its format.
    """

    def __init__(self, path: Path, output_format: OutputFormat) -> None:
        self.path, self._output_format = path, output_format
        self.folder = path.with_name(f"{path.name}.parts")

    def begin(self, identity: Mapping[str, Any], *, restart: bool) -> bool:
        """Prepare the folder; delete the parts of other predictions.

        Args:
            identity: JSON document of all values that determine the predictions.
            restart: delete all existing parts.

        Returns:
            Whether parts of an earlier start are reused.

        Raises:
            SpecError: the folder has files of something else.
            StorageError: the folder cannot be written.
        """
        with storage.storage_errors(self.folder, "the predictions"):
            if not restart and read_object(self.folder / IDENTITY) == identity:
                return True
            self._require_own_folder()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            storage.write_json(self.folder / IDENTITY, identity)
            return False

    def has(self, number: int) -> bool:
        """Return whether the complete part of a window exists and matches its marker.

        A damaged part, and one of a version that recorded no hashes, counts as missing: `write` replaces it.
        """
        marker = read_object(self._marker_file(number)) or {}
        intact = marker.get("score_inputs_sha256") == _sha256(json.dumps(marker.get("score_inputs")))
        return intact and has_content(self._file(number), marker.get("part"))

    def write(self, number: int, records: Sequence[Record], score_inputs: Mapping[str, Any]) -> None:
        """Write the part of a window, then its marker.

        Raises:
            StorageError: the disk is full or read-only.
        """
        # The order matters: the second file marks the window as complete, see `has`.
        with storage.storage_errors(self.folder, "the predictions"):
            with atomic_file(self._file(number)) as temporary:
                self._output_format.write(temporary, records)
                part = content_record(temporary)
            text = json.dumps(score_inputs)
            marker = {"part": part, "score_inputs_sha256": _sha256(text), "score_inputs": json.loads(text)}
            write_text(self._marker_file(number), json.dumps(marker))

    def score_inputs(self, count: int) -> list[dict[str, Any]]:
        """Return the score inputs of `count` windows, in their order."""
        markers = [self._marker_file(number).read_text(encoding="utf-8") for number in range(count)]
        return [json.loads(marker)["score_inputs"] for marker in markers]

    def join(self, count: int) -> dict[str, Any]:
        """Join the parts into the file; return its size and hash, as `content_record` does."""
        parts = [self._file(number) for number in range(count)]
        with storage.storage_errors(self.path.parent, "the predictions"), atomic_file(self.path) as temporary:
            self._output_format.join(parts, temporary)
            return content_record(temporary)

    def remove(self) -> None:
        """Delete the parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _require_own_folder(self) -> None:
        # A start killed while it made or deleted the folder leaves drafts and parts without an identity.
        if self.folder.is_dir() and not (self.folder / IDENTITY).exists():
            names = (path.name for path in self.folder.iterdir())
            if others := sorted(name for name in names if not OWN_NAME.match(name)):
                raise SpecError(
                    f"cannot predict: {self.folder} has files of something else",
                    facts={"files": ", ".join(others[:3])},
                    fix="rename that folder, or choose another output",
                )

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}{self.path.suffix}"

    def _marker_file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; after the body it is synced to the disk and replaces `path` atomically."""
    # In the same folder: a rename is atomic within one file system only.
    with draft(path) as temporary:
        yield temporary
        sync(temporary)
        temporary.replace(path)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _field(value: Any) -> str:
    return _json(value) if isinstance(value, JSON_TYPES) else tsv_text(str(value))


def _csv_field(value: Any) -> str:
    if not isinstance(value, JSON_TYPES):
        return str(value)
    text = _json(value)
    return "" if text == "null" else text


def _json(value: Any) -> str:
    """Return a value as JSON. NaN and infinities, which JSON does not have, are null."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=_plain, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value with None for each number in it that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):  # tuples: the entries of a map in Parquet
        return [_finite(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return _finite(_plain(value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Convert a vector, or a date of Parquet, to JSON."""
    if isinstance(value, np.ndarray):
        return [float(f"{number:.{VECTOR_DIGITS}g}") for number in value.tolist()]
    return str(value)
