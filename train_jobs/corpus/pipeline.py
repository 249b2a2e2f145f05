"""The steps from sources to a token store. Each step writes a record; a step whose record matches is skipped.

    STORE/parts/documents-00012.*   documents of part 12, extracted and cleaned
    STORE/parts/duplicates.*        documents that repeat an earlier one
    STORE/parts/vocabulary.json     record of vocab.txt, trained on the other documents or given
    STORE/parts/tokens-00012.json   record of the part's shards: sentences, WordPiece, split
    STORE/manifest.json             written last; then `parts` is removed

Parts, and with them every byte of the store, depend only on the text: not on the number of processes or machines that
share the work, nor on how often it was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.store_manifest import StoreManifest
from train_jobs.artifacts.store_places import StorePath
from train_jobs.artifacts.text_rule import MOST_LOST, LetterCounts
from train_jobs.config.errors import DataError
from train_jobs.corpus.executors.base import Executor
from train_jobs.corpus.sources.text_parts import Part
from train_jobs.corpus.steps.document_rules import DocumentSurvey, split_threshold
from train_jobs.corpus.steps.documents import DUPLICATES, find_duplicates, no_duplicates, stretches
from train_jobs.corpus.steps.manifest import PreparationRecords, make_manifest, source_names
from train_jobs.corpus.steps.records import (
    DocumentsRecord,
    DuplicatesRecord,
    PartTask,
    PreparationSetting,
    StepRecord,
    TokensRecord,
    VocabularyRecord,
    damaged_file,
    documents_keys,
    duplicates_key,
    part_name,
    read_record,
    text_files_of,
    tokens_key,
    vocabulary_key,
)
from train_jobs.corpus.steps.tokenisation import VOCABULARY, make_vocabulary

RecordT = TypeVar("RecordT", bound=StepRecord)
PartRecordT = TypeVar("PartRecordT", DocumentsRecord, TokensRecord)
Report = Callable[[str], None]
Figures = Callable[[int, Mapping[str, float]], None]
SECONDS_BETWEEN_LINES = 10.0
LEAST_SECONDS = 1e-3
MB = 1e6


class PreparationProgress:
    """Progress of a preparation: periodic lines of text, and the figures of the run.

    Args:
        log: called with a line of text.
        figures: called with the number of parts done and metrics, whenever a part is done. None: no metrics.
        every: seconds between two lines.
    """

    def __init__(self, log: Report, figures: Figures | None = None, *, every: float = SECONDS_BETWEEN_LINES) -> None:
        self.log = log
        self._figures, self._every = figures, every
        self.parts = 0
        """Parts done in every step, now and in earlier starts."""
        self._by_source: dict[str, tuple[float, float]] = {}
        self.begin("", total=0)

    def begin(self, step: str, *, total: int) -> None:
        """Begin a step.

        Args:
            step: its name.
            total: bytes left to process.
        """
        self._step, self._total = step, total
        self._bytes = self._documents = self._workers = self._done_bytes = self._done_documents = 0
        self._started = self._reported = time.monotonic()

    def advance(self, count: int, documents: int) -> None:
        """Add processed bytes and documents."""
        self._bytes += count
        self._documents += documents
        if time.monotonic() - self._reported > self._every:
            self._report()

    def count_part(self, source: str, size: int, record: DocumentsRecord | TokensRecord) -> None:
        """Count a finished part of the step, of this start or an earlier one.

        Args:
            source: name of its source.
            size: its bytes.
            record: of the part.
        """
        self.parts += 1
        self._done_bytes += size
        self._done_documents += record.processed
        before = self._by_source.get(source, (0.0, 0.0))
        self._by_source[source] = before[0] + size, before[1] + record.seconds

    def report_parts(self, workers: int) -> None:
        """Report the figures of the step: parts of all starts, and the speed of this one.

        Args:
            workers: workers that run tasks now.
        """
        self._workers = workers
        if self._figures is not None:
            figures = {
                "documents": self._done_documents,
                "bytes": self._done_bytes,
                "mb_per_second": self._speed() / MB,
                "workers": workers,
            }
            self._figures(self.parts, {f"{self._step}_{name}": figure for name, figure in figures.items()})

    def slowest_source(self) -> tuple[str, float] | None:
        """Return the source with the lowest bytes per second of a worker; None with a single source."""
        speeds = {name: size / max(seconds, LEAST_SECONDS) for name, (size, seconds) in self._by_source.items()}
        return min(speeds.items(), key=lambda item: item[1]) if len(speeds) > 1 else None

    def end(self) -> None:
        """End the step; print a final line if it took longer than `every`."""
        if time.monotonic() - self._started > self._every:
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        speed = self._speed()
        left = max(self._total - self._bytes, 0) / speed if speed else 0
        self.log(
            f"{self._step}: {self._bytes / MB:,.1f} of {self._total / MB:,.1f} MB, {self._documents:,} documents,"
            f" {speed / MB:.1f} MB/s, {self._workers_text()}eta {_clock(left)}"
        )

    def _workers_text(self) -> str:
        text = f"{self._workers} workers, " if self._workers > 1 else ""
        slowest = self.slowest_source()
        return text if slowest is None else f"{text}slowest source {slowest[0]} ({slowest[1] / MB:.1f} MB/s a worker), "

    def _speed(self) -> float:
        # A step on a tiny text can finish within one tick of the clock.
        return self._bytes / max(time.monotonic() - self._started, LEAST_SECONDS)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True)
class Preparation:
    """A preparation in progress: the text and the executor of its tasks.

    Attributes:
        setting: sources, rules and folders.
        found: fingerprint of the text.
        key: key of the store, see `records.store_key`.
        parts: parts of the text.
        executor: runs the tasks of the steps that are divided into parts.
        progress: receives lines and figures.
        hashes: JSON file that caches content hashes, see `fingerprints.content_hashes`. None: no cache.
    """

    setting: PreparationSetting
    found: DataFingerprint
    key: str
    parts: Sequence[Part]
    executor: Executor
    progress: PreparationProgress
    hashes: Path | None = None

    def make(self) -> StoreManifest:
        """Run all steps that are not done, and return the manifest.

        Raises:
            DataError: text or vocabulary cannot be used; the message gives the reason.
            PeerError: scheduler or workers of a Dask cluster were lost.
        """
        self.progress.log(
            f"reading {self.found.name}: {self.found.files} file{'s' if self.found.files != 1 else ''},"
            f" {self.found.total_bytes / 1e6:.1f} MB,"
            f" {len(self.parts)} part{'s' if len(self.parts) != 1 else ''}"
        )
        documents = self._documents()
        # Checked before and after: the first call catches a wrong path or format before duplicates are searched.
        self._require_all_sources(documents)
        duplicates = self._duplicates(documents)
        self._require_all_sources(documents, duplicates)
        threshold = self._threshold(documents)
        vocabulary = self._vocabulary(documents, duplicates)
        tokens = self._tokens(documents, duplicates, vocabulary, threshold)
        records = PreparationRecords(documents, duplicates, vocabulary, tokens)
        return make_manifest(self.setting, self.found, self.key, self.parts, records)

    def _documents(self) -> list[DocumentsRecord]:
        files = text_files_of(self.parts, self.hashes)
        keys = documents_keys(self.setting.data, self.parts, self.found, files)
        tasks = [
            PartTask(
                step="documents",
                number=number,
                part=part,
                key=key,
                size=part.size,
                text={piece.path: files[piece.path] for piece in part.pieces if piece.path in files},
            )
            for number, (part, key) in enumerate(zip(self.parts, keys, strict=True))
        ]
        return self._run_parts(tasks, DocumentsRecord, self.setting.folder)

    def _duplicates(self, documents: Sequence[DocumentsRecord]) -> DuplicatesRecord:
        key, folder = duplicates_key(self.setting.data, documents), self.setting.folder
        if not self.setting.data.clean.drop_duplicates:
            return no_duplicates(len(self.parts), key=key)
        find = partial(find_duplicates, folder, [record.documents for record in documents], key=key)
        return self._run_here(DUPLICATES, DuplicatesRecord, key, folder, find)

    def _vocabulary(self, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord) -> VocabularyRecord:
        key = vocabulary_key(self.setting.data, duplicates)

        def make() -> VocabularyRecord:
            made = make_vocabulary(self.setting, documents, duplicates, key=key)
            if self.setting.data.vocabulary is None:
                self.progress.log(f"vocabulary trained: {made.pieces} pieces")
            return made

        record = self._run_here(VOCABULARY, VocabularyRecord, key, self.setting.store, make)
        self.progress.log(f"words: {record.rule.words}")
        share = sum((part.letters for part in documents), LetterCounts()).marks_share
        if record.rule.strip_accents and share > MOST_LOST:
            keep = "data.strip_accents=false keeps them, with a vocabulary of such text"
            self.progress.log(f"warning: stripping accents drops or takes apart {share:.1%} of the characters: {keep}")
        return record

    def _tokens(
        self,
        documents: Sequence[DocumentsRecord],
        duplicates: DuplicatesRecord,
        vocabulary: VocabularyRecord,
        threshold: int,
    ) -> list[TokensRecord]:
        tasks = [
            PartTask(
                step="tokens",
                number=number,
                part=part,
                key=tokens_key(self.setting, threshold, record.key, digest, vocabulary),
                size=record.text_bytes,
                threshold=threshold,
                rule=vocabulary.rule,
                drop=drop,
            )
            for number, (part, record, digest, drop) in enumerate(
                zip(self.parts, documents, duplicates.digests, stretches(duplicates), strict=True)
            )
        ]
        return self._run_parts(tasks, TokensRecord, self.setting.store)

    def _threshold(self, documents: Sequence[DocumentsRecord]) -> int:
        # The threshold needs the smallest and largest hash of all documents, so every part must be read before any
        # document is assigned to a split.
        survey = DocumentSurvey()
        for record in documents:
            survey.merge(DocumentSurvey(record.documents, record.lowest, record.highest, set(record.words)))
        try:
            return split_threshold(survey, validation_fraction=self.setting.data.validation_fraction)
        except DataError as problem:
            problem.facts = {"text": self.found.name, **problem.facts}
            raise

    def _require_all_sources(
        self, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord | None = None
    ) -> None:
        """Require a document from every source; if no source has any, `_threshold` reports the text as a whole.

        Raises:
            DataError: names the source.
        """
        names = source_names(self.setting.data)
        kept, read = [0] * len(names), [0] * len(names)
        for number, (part, record) in enumerate(zip(self.parts, documents, strict=True)):
            read[part.source] += record.read
            kept[part.source] += record.documents - (duplicates.dropped[number] if duplicates else 0)
        if any(kept) and not all(kept):
            source = kept.index(0)
            reason = "all are in the text already" if duplicates else "data.clean drops all of them"
            raise DataError(
                f"the source {names[source]} contributes no document",
                facts={
                    "found": f"{read[source]:,} documents",
                    "why": reason if read[source] else "its files contain no document",
                },
                fix="remove the source from data.text, or correct it",
            )

    def _run_parts(self, tasks: Sequence[PartTask], kind: type[PartRecordT], files: StorePath) -> list[PartRecordT]:
        """Return the record of each part: of an earlier start, or made by the executor."""
        step, by_number = tasks[0].step, {task.number: task for task in tasks}
        found = {
            task.number: record
            for task in tasks
            if (record := self._intact_record(part_name(step, task.number), kind, task.key, files)) is not None
        }
        if found:
            self.progress.log(f"{step}: {len(found)} of {len(tasks)} parts are done already")
        todo = [task for task in tasks if task.number not in found]
        names = source_names(self.setting.data)
        self.progress.begin(step, total=sum(task.size for task in todo))
        for number, earlier in found.items():
            self.progress.count_part(names[by_number[number].part.source], by_number[number].size, earlier)
        for result in self.executor.run(todo, self.progress.advance):
            record = kind.model_validate_json(result.record)
            task = by_number[result.number]
            found[task.number] = record
            self.progress.count_part(names[task.part.source], task.size, record)
            self.progress.report_parts(self.executor.workers)
        self.progress.end()
        return [found[task.number] for task in tasks]

    def _run_here(
        self, name: str, kind: type[RecordT], key: str, files: StorePath, make: Callable[[], RecordT]
    ) -> RecordT:
        """Return the record of a step that is not divided: of an earlier start, or made in this process."""
        return self._intact_record(name, kind, key, files) or make()

    def _intact_record(self, name: str, kind: type[RecordT], key: str, files: StorePath) -> RecordT | None:
        """Return the record of an earlier start if its files match it, else None; their content is hashed."""
        record = read_record(self.setting.folder, name, kind, key, files=files)
        # `read_record` compares sizes only; damage that keeps the size is visible in the hash alone.
        damaged = None if record is None else damaged_file(files, record)
        if damaged is not None:
            self.progress.log(f"{damaged.name} does not match its record: writing it again")
            # A Dask worker keeps a part whose record exists, and compares sizes only.
            (self.setting.folder / f"{name}.json").unlink()
            return None
        return record
