"""From sources to a token store, in steps that each leave a record: what fits is skipped, what does not is done again.

    STORE/parts/documents-00012.*   extract and clean, a part at a time
    STORE/parts/duplicates.*        which documents are in the text already
    STORE/parts/vocabulary.json     of vocab.txt, trained on the others or given
    STORE/parts/tokens-00012.json   of the part's shards: sentences, WordPiece, split
    STORE/manifest.json             written last; then `parts` goes

Parts, and with them every byte of the store, depend on the text alone, not on how many processes or machines share the
work, nor on how often it was interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from train_jobs.artifacts.fingerprints import DataFingerprint
from train_jobs.artifacts.store_manifest import PARTS, StoreManifest
from train_jobs.config.errors import DataError
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.executors.crew import Crew
from train_jobs.corpus.executors.nodes import ALONE, Node, Peers
from train_jobs.corpus.executors.work import PART, Setting, Task
from train_jobs.corpus.preparation_progress import Progress
from train_jobs.corpus.sources import Part, plan_parts
from train_jobs.corpus.steps import keys
from train_jobs.corpus.steps.closing import make_manifest, source_names
from train_jobs.corpus.steps.duplicates import NAME as DUPLICATES
from train_jobs.corpus.steps.duplicates import find_duplicates, no_duplicates, stretches
from train_jobs.corpus.steps.extraction import documents_name
from train_jobs.corpus.steps.records import (
    DocumentsRecord,
    DuplicatesRecord,
    Record,
    TokensRecord,
    VocabularyRecord,
    damaged_file,
    read_record,
)
from train_jobs.corpus.steps.splits import Survey, split_rule
from train_jobs.corpus.steps.tokenisation import VOCABULARY, make_vocabulary, tokens_name
from train_jobs.corpus.store.token_store import BLOCK_TOKENS, TokenStore

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True)
class Preparation:
    """One store in the making.

    Attributes:
        data: sources and settings.
        found: fingerprint of the text.
        store: the folder.
        key: of the store.
        node: who we are among those that make it.
        workers: most processes here.
        progress: told how far it is.
        hashes: as `cache` of `sources.content_hashes`.
        block_tokens: as of `store.StoreWriter`.
        parts: of the text.
        peers: the other nodes.
        crew: the processes here.
    """

    data: TextConfig
    found: DataFingerprint
    store: Path
    key: str
    workers: int
    progress: Progress
    node: Node = ALONE
    hashes: Path | None = None
    block_tokens: int = BLOCK_TOKENS
    parts: list[Part] = field(init=False)
    peers: Peers = field(init=False)
    crew: Crew = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", plan_parts(self.data.text))
        object.__setattr__(self, "peers", Peers(self.folder, self.node, self.key, self.progress.say, self.is_complete))
        setting = Setting(data=self.data, store=self.store, folder=self.folder, block_tokens=self.block_tokens)
        object.__setattr__(self, "crew", Crew(setting, self.workers))

    @property
    def folder(self) -> Path:
        """Where records go."""
        return self.store / PARTS

    def is_complete(self) -> bool:
        """Whether the store is there."""
        return TokenStore.find(self.store, self.key) is not None

    def make(self) -> StoreManifest | None:
        """All steps, as far as they are not done; returns the manifest on the leading node.

        Raises:
            DataError: text or vocabulary that cannot be used; the message says why.
            PeerError: another node is gone.
            StoreComplete: the other nodes were done without this one.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.progress.say(
            f"reading {self.found.name}: {self.found.files} files, {self.found.total_bytes / 1e6:.1f} MB,"
            f" {len(self.parts)} part{'s' if len(self.parts) != 1 else ''}"
        )
        with self.peers.beating(), self.crew:
            documents = self.documents()
            self.require_all_sources(documents)
            duplicates = self.duplicates(documents)
            self.require_all_sources(documents, duplicates)
            threshold = self.threshold(documents)
            vocabulary = self.vocabulary(documents, duplicates)
            tokens = self.tokens(documents, duplicates, threshold, vocabulary)
            if not self.node.leads:
                return None
            return make_manifest(
                self.data, self.found, self.store, self.key, self.parts, documents, duplicates, vocabulary, tokens
            )

    def documents(self) -> list[DocumentsRecord]:
        """The first step."""
        wanted = keys.documents_keys(self.data, self.parts, self.found, self.hashes)
        tasks = [
            Task(
                step="documents",
                number=number,
                part=PART.dump_python(part, mode="json"),
                key=wanted[number],
                size=part.size,
            )
            for number, part in enumerate(self.parts)
        ]
        return self._each("documents", tasks, documents_name, DocumentsRecord, self.folder)

    def duplicates(self, documents: Sequence[DocumentsRecord]) -> DuplicatesRecord:
        """What is in the text already."""
        key = keys.duplicates_key(self.data, [record.key for record in documents])
        if not self.data.clean.drop_duplicates:
            return no_duplicates(len(self.parts), key=key)
        counts = [record.documents for record in documents]
        return self._once(
            DUPLICATES, DuplicatesRecord, key, self.folder, lambda: find_duplicates(self.folder, counts, key=key)
        )

    def vocabulary(self, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord) -> VocabularyRecord:
        """The vocabulary, in the store."""
        key = keys.vocabulary_key(self.data, duplicates.key)

        def make() -> VocabularyRecord:
            made = make_vocabulary(self.data, self.folder, self.store, documents, duplicates, key)
            if self.data.vocabulary is None:
                self.progress.say(f"vocabulary trained: {made.pieces} pieces")
            return made

        return self._once(VOCABULARY, VocabularyRecord, key, self.store, make)

    def tokens(
        self,
        documents: Sequence[DocumentsRecord],
        duplicates: DuplicatesRecord,
        threshold: int,
        vocabulary: VocabularyRecord,
    ) -> list[TokensRecord]:
        """The last step; only the leading node waits for what the others make, and then may clear all up."""
        drops = stretches(duplicates)
        tasks = [
            Task(
                step="tokens",
                number=number,
                part=PART.dump_python(part, mode="json"),
                key=keys.tokens_key(
                    self.data,
                    documents[number],
                    duplicates,
                    number,
                    vocabulary=vocabulary.files[0].sha256,
                    threshold=threshold,
                    block_tokens=self.block_tokens,
                ),
                size=documents[number].text_bytes,
                threshold=threshold,
                drop=drops[number],
            )
            for number, part in enumerate(self.parts)
        ]
        return self._each("tokens", tasks, tokens_name, TokensRecord, self.store, wait=self.node.leads)

    def threshold(self, documents: Sequence[DocumentsRecord]) -> int:
        """As of `splits.SplitRule`."""
        survey = Survey()
        for record in documents:
            survey.merge(Survey(record.documents, record.lowest, record.highest, set(record.words)))
        try:
            return split_rule(survey, validation_fraction=self.data.validation_fraction).threshold
        except DataError as problem:
            problem.facts = {"text": self.found.name, **problem.facts}
            raise

    def require_all_sources(
        self, documents: Sequence[DocumentsRecord], duplicates: DuplicatesRecord | None = None
    ) -> None:
        """No source may come to nothing, unless all of them do, which is said of the text as a whole.

        Raises:
            DataError: names the source.
        """
        names = source_names(self.data)
        kept = [0] * len(names)
        read = [0] * len(names)
        for number, part in enumerate(self.parts):
            read[part.source] += documents[number].read
            kept[part.source] += documents[number].documents - (duplicates.dropped[number] if duplicates else 0)
        if not any(kept):
            return
        for source, name in enumerate(names):
            if kept[source] == 0:
                raise DataError(
                    f"the source {name} contributes no document",
                    facts={"found": f"{read[source]:,} documents", "why": _why_none(read[source], duplicates)},
                    fix="leave it out of data.text, or mend it",
                )

    def clear(self) -> None:
        """Removes what the steps left."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _each(
        self,
        step: str,
        tasks: Sequence[Task],
        name: Callable[[int], str],
        kind: type[RecordT],
        files: Path,
        *,
        wait: bool = True,
    ) -> list[RecordT]:
        """A record for each part: those that fit, those made here, and, unless it shall not wait, of other nodes."""

        def look(task: Task) -> RecordT | None:
            return read_record(self.folder, name(task.number), kind, task.key, files=files)

        ours = [task for task in tasks if self.node.owner(task.number) == self.node.rank]
        todo = [task for task in ours if not self._whole(look(task), files)]
        skipped = len(ours) - len(todo)
        if skipped:
            self.progress.say(f"{step}: {skipped} of {len(ours)} parts are done already")
        self.progress.begin(step, total=sum(task.size for task in todo), done=skipped)
        for _ in self.crew.do(todo, self.progress.advance):
            self.progress.part_done()
        self.progress.end()
        if not wait:
            return []
        return [
            self.peers.wait(
                f"{step} of part {task.number}",
                self.node.owner(task.number),
                lambda task=task: look(task),  # type: ignore[misc]
            )
            for task in tasks
        ]

    def _once(self, name: str, kind: type[RecordT], key: str, files: Path, make: Callable[[], RecordT]) -> RecordT:
        """A record that the leading node makes for all."""

        def look() -> RecordT | None:
            return read_record(self.folder, name, kind, key, files=files)

        if not self.node.leads:
            return self.peers.wait(name, 0, look)
        found = look()
        return found if found is not None and self._whole(found, files) else make()

    def _whole(self, record: Record | None, files: Path) -> bool:
        """Whether it is there, and its files are what it says."""
        if record is None:
            return False
        damaged = damaged_file(files, record)
        if damaged is not None:
            self.progress.say(f"{damaged.name} is not what was written: it is made again")
        return damaged is None


def _why_none(read: int, duplicates: DuplicatesRecord | None) -> str:
    if read == 0:
        return "there is none in its files"
    return "all are in the text already" if duplicates else "data.clean drops all of them"
