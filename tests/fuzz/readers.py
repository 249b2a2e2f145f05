"""The readers to fuzz. Each entry imports its code and returns a function from bytes to a call.

A reader may raise an error of the project (`UserError`), which the command prints; any other exception is a finding.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

Call = Callable[[bytes], None]
STORE = Path(__file__).resolve().parent / "corpus" / "store"
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b", "text")
SHAPE = {
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 4,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
}
BERT = {**SHAPE, "model_type": "bert", "vocab_size": 10, "architectures": ["BertModel"], "hidden_act": "gelu"}


def spec(folder: Path) -> Call:
    """Spec files."""
    from orchestrator.jobs.resolve import resolve_spec

    def call(data: bytes) -> None:
        path = folder / "job.yaml"
        path.write_bytes(data)
        resolve_spec("pretrain", file=path)

    return call


def assignments(folder: Path) -> Call:
    """Values of --set, one a line."""
    from orchestrator.jobs.resolve import resolve_spec

    return lambda data: resolve_spec("finetune", sets=data.decode(errors="surrogateescape").split("\n")) and None


def ignore_files(folder: Path) -> Call:
    """Ignore files of the user's code."""
    from orchestrator.snapshot.walk import Walk

    tree = folder / "code"
    for name in ("a" * 200, "a/b/c/d/e.py", "data/x.txt", "b[1].txt"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()

    def call(data: bytes) -> None:
        (tree / ".gitignore").write_bytes(data)
        Walk(tree, repository=tree, excluded={}, reserved=frozenset())

    return call


def text(folder: Path) -> Call:
    """Plain text, compressed or not."""
    from train_jobs.artifacts.text_documents import count_documents
    from train_jobs.artifacts.text_files import source_files
    from train_jobs.config.prepare import SourceConfig
    from train_jobs.corpus.sources.streams import Piece, ignore
    from train_jobs.corpus.sources.text_formats import read_text, read_wikiextractor
    from train_jobs.corpus.tokenize.vocabulary import WordCounter, bert_rule

    def call(data: bytes) -> None:
        path = folder / "text"
        path.write_bytes(data)
        source = SourceConfig(path=(str(path),))
        [file] = source_files(source)
        count_documents([source])
        piece = Piece(str(path), file.compression)
        if file.format == "wikiextractor":
            list(read_wikiextractor(piece, ignore))
        elif file.format == "text":
            counter = WordCounter(bert_rule(lowercase=True, strip_accents=None, split_unspaced=False))
            counter.add(read_text(piece, ignore, strip_gutenberg=True))

    return call


def wikitext(folder: Path) -> Call:
    """Markup of an article, or a dump if the input begins with `<`."""
    from train_jobs.corpus.sources.mediawiki import read_wikipedia
    from train_jobs.corpus.sources.streams import Piece, ignore
    from train_jobs.corpus.sources.wikitext import plain_text

    def call(data: bytes) -> None:
        if not data.startswith(b"<"):
            plain_text(data.decode(errors="replace"))
            return
        path = folder / "dump.xml"
        path.write_bytes(data)
        list(read_wikipedia(Piece(str(path)), ignore))

    return call


def _check_table(path: Path) -> None:
    """Read a table as a task does: a text, and a label that is a class or a number."""
    from train_jobs.readers.tables import RowProblems, classes, numbers, read_table, texts

    table, problems = read_table(path, ["text", "label"]), RowProblems("problems", fix="none")
    texts(table, "text", problems)
    classes(table, "label", problems)
    numbers(table, "label", problems)
    problems.check()


def tables(folder: Path) -> Call:
    """CSV, or TSV if the input begins with a tab."""
    import train_jobs.readers.tables  # noqa: F401  # here, where imports are instrumented

    def call(data: bytes) -> None:
        path = folder / ("table.tsv" if data.startswith(b"\t") else "table.csv")
        path.write_bytes(data.removeprefix(b"\t"))
        _check_table(path)

    return call


def json_lines(folder: Path) -> Call:
    """JSON Lines, as a table and as text."""
    from train_jobs.config import UserError
    from train_jobs.corpus.sources.streams import Piece, ignore
    from train_jobs.corpus.sources.text_formats import read_jsonl

    def call(data: bytes) -> None:
        path = folder / "table.jsonl"
        path.write_bytes(data)
        try:
            list(read_jsonl(Piece(str(path)), "text", ignore))
        except UserError as problem:
            str(problem)
        _check_table(path)

    return call


def parquet(folder: Path) -> Call:
    """Parquet, as a table and as text."""
    from orchestrator.jobs.row_counts import count_table
    from train_jobs.config import UserError
    from train_jobs.corpus.sources.streams import Piece, ignore
    from train_jobs.corpus.sources.text_columns import read_parquet, row_groups
    from train_jobs.readers.tables import read_table

    def call(data: bytes) -> None:
        path = folder / "table.parquet"
        path.write_bytes(data)
        try:
            row_groups(str(path), "text")
            list(read_parquet(Piece(str(path)), "text", ignore))
        except UserError as problem:
            str(problem)
        try:
            count_table(path, "parquet", quoting=None, header=True)
        except UserError as problem:
            str(problem)
        read_table(path, ["text"])

    return call


def squad(folder: Path) -> Call:
    """Questions in SQuAD's format, as a plan counts them, and as training and an evaluation read them."""
    from orchestrator.jobs.row_counts import count_table
    from train_jobs.config import UserError
    from train_jobs.readers.squad_data import read_squad, require_scorable

    def call(data: bytes) -> None:
        path = folder / "questions.json"
        path.write_bytes(data)
        count_table(path, "squad", quoting=None, header=False)
        try:
            read_squad(path, training=True)
        except UserError as problem:
            str(problem)
        require_scorable([read_squad(path)])

    return call


def conll(folder: Path) -> Call:
    """Tagged words in CoNLL's format, for training and for a prediction."""
    from orchestrator.jobs.row_counts import count_table
    from train_jobs.config import UserError
    from train_jobs.inference.input_windows import TAGS, WORDS, ConllReader
    from train_jobs.tasks.entities.conll import entities, read_conll, tag_names

    def call(data: bytes) -> None:
        path = folder / "words.conll"
        path.write_bytes(data)
        count_table(path, "conll", quoting=None, header=False)
        try:
            found = read_conll(path)
            tag_names(found)
            for tags in found.tags:
                entities(tags)
            read_conll(path, known=["O", "B-PER"], word_column=2, tags_needed=False)
        except UserError as problem:
            str(problem)
        list(ConllReader(path, [WORDS, TAGS]).rows())

    return call


def env_file(folder: Path) -> Call:
    """Files of variables; a process is given what they contain."""
    import subprocess

    from orchestrator.support.secret_sources import read_env_file

    def call(data: bytes) -> None:
        path = folder / "secrets.env"
        path.touch(0o600)
        path.write_bytes(data)
        values = read_env_file(path)
        if values and len(data) % 16 == 0:  # a process takes a hundred times as long as the rest
            subprocess.run(["/bin/true"], env=values, check=True)

    return call


def az_yaml(folder: Path) -> Call:
    """Job files of `az ml`."""
    import azure.ai.ml  # noqa: F401  # takes a second, which is not that of an input

    from orchestrator.backends.azure.az_yaml import read_job_file

    def call(data: bytes) -> None:
        path = folder / "job.yml"
        path.write_bytes(data)
        file = read_job_file(path)
        _ = file.name, file.nodes, file.processes

    return call


def store(folder: Path) -> Call:
    """Token stores: the manifest, or a shard with a manifest that fits it if the input begins with `ARROW1`."""
    import hashlib

    from train_jobs.artifacts.store_manifest import SPLITS, require_manifest, store_warnings
    from train_jobs.corpus.store.inspection import verify
    from train_jobs.corpus.store.token_store import TokenStore

    template = json.loads((STORE / "manifest.json").read_text())
    shard = (STORE / "shard.arrow").read_bytes()

    def call(data: bytes) -> None:
        is_shard = data.startswith(b"ARROW1")
        content = data if is_shard else shard
        if is_shard:
            listed = {**template["shards"][0], "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            data = json.dumps({**template, "shards": [listed]}).encode()
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
        (folder / "shard-00000-train.arrow").write_bytes(content)
        (folder / "manifest.json").write_bytes(data)
        (folder / "damaged.txt").unlink(missing_ok=True)  # of the input before
        store_warnings(require_manifest(folder))
        verify(folder)
        opened = TokenStore.open(folder)
        for split in SPLITS:
            opened.block_tokens(split)
            for number in range(min(opened.blocks(split), 3)):
                opened.block(split, number).separated(3)

    return call


def checkpoint(folder: Path) -> Call:
    """Checkpoints: COMMIT.json, or a state.json with a commit that fits it if the input begins with a space."""
    from train_jobs.artifacts.commit import Commit, finish, write_commit, write_file
    from train_jobs.artifacts.start_phase import find_checkpoint, phase_lineage, read_phase, verify_phase
    from train_jobs.engine.checkpoint.checkpoints import CheckpointStore

    step = folder / "checkpoints" / "step-00000001"
    step.mkdir(parents=True)

    def call(data: bytes) -> None:
        state = data if data.startswith(b" ") else b"{}"
        files = {name: finish(write_file(step / name, [state])) for name in ("state.json", "model.safetensors")}
        files["optimizer.safetensors"] = finish(write_file(step / "optimizer.safetensors", [b"x"]))
        if data.startswith(b" "):
            write_commit(step, Commit(1, 0.5, files))
        else:
            (step / "COMMIT.json").write_bytes(data)
        found = CheckpointStore(folder / "checkpoints", keep_last=2)
        found.newest()
        found.best()
        phase = read_phase(find_checkpoint(folder))
        phase_lineage(phase)
        phase.layer()
        verify_phase(phase)

    return call


def vocabulary(folder: Path) -> Call:
    """vocab.txt."""
    from train_jobs.corpus.tokenize.vocabulary import continuing_pieces, load_vocabulary

    def call(data: bytes) -> None:
        path = folder / "vocab.txt"
        path.write_bytes(data)
        continuing_pieces(path)
        load_vocabulary(path, lowercase=True, words=["word"]).encode("a text with [MASK]")

    return call


def hf_config(folder: Path) -> Call:
    """config.json of a model; tokenizer_config.json if the input begins with a space, tokenizer.json with a tab."""
    from train_jobs.artifacts.layers import ConfigLayer
    from train_jobs.artifacts.start_model import initial_lineage, merge_with_initial_model, read_initial_model
    from train_jobs.config import UserError
    from train_jobs.inference.model_folder import read_folder

    names = {b" ": "tokenizer_config.json", b"\t": "tokenizer.json"}

    def call(data: bytes) -> None:
        (folder / "tokenizer.json").unlink(missing_ok=True)
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / "config.json").write_text(json.dumps(BERT))
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
        (folder / "model.safetensors").write_bytes(b"")
        (folder / names.get(data[:1], "config.json")).write_bytes(data)
        try:
            read_folder(folder).tokenizer().encode("a b")
        except UserError as problem:
            str(problem)
        merge_with_initial_model([], [ConfigLayer("flag", {"init_from": str(folder)})])
        read_initial_model(folder).rule()
        initial_lineage(folder)

    return call


def hf_weights(folder: Path) -> Call:
    """model.safetensors, or pytorch_model.bin if the input begins like a pickle or a ZIP archive."""
    from train_jobs.config import ModelConfig
    from train_jobs.models.bert.task_heads import BertEncoder
    from train_jobs.models.huggingface import load_weights

    (folder / "config.json").write_text(json.dumps(BERT))
    model = BertEncoder(ModelConfig(**SHAPE, pad_vocab_to_multiple_of=1), 10)

    def call(data: bytes) -> None:
        for name in ("model.safetensors", "pytorch_model.bin"):
            (folder / name).unlink(missing_ok=True)
        old = data.startswith((b"PK", b"\x80"))
        (folder / ("pytorch_model.bin" if old else "model.safetensors")).write_bytes(data)
        load_weights(model, folder)

    return call


def predictions(folder: Path) -> Call:
    """Scored rows of a run, which `compare` reads."""
    from train_jobs.evaluation.scored_rows import read_scored_rows

    def call(data: bytes) -> None:
        try:
            found = read_scored_rows(data)
        except ValueError as problem:  # its documented error, which `runs.significance` reports
            str(problem)
            return
        for one in found.values():
            one.as_dict()

    return call


class _Collector(logging.Handler):
    """Collector of exceptions that asyncio logs.

    Args:
        bugs: receives them.
    """

    def __init__(self, bugs: list[Exception]) -> None:
        super().__init__()
        self._bugs = bugs

    def emit(self, record: logging.LogRecord) -> None:
        """Add the exception of a record."""
        found = record.exc_info[1] if record.exc_info else None
        self._bugs.append(found if isinstance(found, Exception) else RuntimeError(record.getMessage()))


def requests(folder: Path) -> Call:
    """Return a call with a body of a request, or with all that a client sends if the input begins with a capital."""
    import uvicorn

    import train_jobs.tools.serve_batches
    import train_jobs.tools.serve_http
    from train_jobs.config import ModelConfig
    from train_jobs.inference.score_requests import predict_requests, read_request
    from train_jobs.models.bert.task_heads import BertForSequenceClassification
    from train_jobs.models.huggingface import TokenizerFiles, export, label_settings
    from train_jobs.tools import serve
    from train_jobs.tools.serve_access import Access

    vocabulary, shape = folder / "vocab.txt", ModelConfig(**SHAPE, pad_vocab_to_multiple_of=1)
    vocabulary.write_text("\n".join(PIECES) + "\n")
    model = BertForSequenceClassification(shape, len(PIECES), 2)
    tokenizer = TokenizerFiles(vocabulary, lowercase=True)
    labels = label_settings(model, ["no", "yes"])
    size = len(PIECES)
    export(model, folder / "model", config=shape, vocab_size=size, tokenizer=tokenizer, config_entries=labels)
    task = serve.load(folder / "model")
    bugs: list[Exception] = []
    for module in (train_jobs.tools.serve_batches, train_jobs.tools.serve_http):
        module.report_bug = bugs.append  # it would only print them
    logging.getLogger("asyncio").addHandler(_Collector(bugs))
    listening = socket.create_server(("127.0.0.1", 0))
    config = train_jobs.tools.serve_http.server_config(task, Access())
    threading.Thread(target=uvicorn.Server(config).run, args=([listening],), daemon=True).start()

    def send(data: bytes) -> None:
        with socket.create_connection(listening.getsockname()) as connection:
            connection.sendall(data)
            connection.settimeout(0.02)  # an incomplete request has no answer
            with suppress(OSError):
                while connection.recv(1 << 16):
                    pass

    def call(data: bytes) -> None:
        if data[:1].isupper():
            with suppress(ConnectionError):
                send(data)
            if bugs:
                raise bugs.pop()
            return
        with suppress(ValueError):  # its documented error, answered with 400
            predict_requests(task, [read_request(data, task)])

    return call


def webhook(folder: Path) -> Call:
    """Answers of a webhook."""
    from orchestrator.support import notify

    notify.TRIES = 1
    notify.SECONDS = 1.0
    server = socket.create_server(("127.0.0.1", 0))

    def call(data: bytes) -> None:
        with answering(server, data):
            notify.post(f"http://127.0.0.1:{server.getsockname()[1]}/hook", {"text": "ended"}, allow_private=True)

    return call


@contextmanager
def answering(server: socket.socket, data: bytes) -> Iterator[None]:
    """Answer one connection with these bytes."""

    def answer() -> None:
        with closing(server.accept()[0]) as connection:
            connection.recv(1 << 16)
            connection.sendall(data)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield
    thread.join(5)


READERS: dict[str, Callable[[Path], Call]] = {
    "spec": spec,
    "set": assignments,
    "ignore": ignore_files,
    "text": text,
    "wikitext": wikitext,
    "tables": tables,
    "jsonl": json_lines,
    "parquet": parquet,
    "squad": squad,
    "conll": conll,
    "env": env_file,
    "az-yaml": az_yaml,
    "store": store,
    "checkpoint": checkpoint,
    "vocabulary": vocabulary,
    "hf-config": hf_config,
    "hf-weights": hf_weights,
    "predictions": predictions,
    "requests": requests,
    "webhook": webhook,
}
