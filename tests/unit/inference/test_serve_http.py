"""The local prediction server against clients that are wrong, hostile, slow or many; each against a real process."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import requests
import torch
import transformers
from drawn_texts import PIECES
from served_model import GOOD, HEAD, Server, attacked, received, served

from orchestrator.backends.folder.served_models import delete, deploy
from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import ServiceError
from tests.unit.lineage.test_model_trust import write_keys
from train_jobs.artifacts.model_trust import sign_folder
from train_jobs.config import DataError
from train_jobs.inference.score_requests import MAX_SEQUENCES, read_request
from train_jobs.tools import serve
from train_jobs.tools.serve_batches import RequestBatches
from train_jobs.tools.serve_http import STOP_SECONDS
from train_jobs.tools.serve_metrics import ServeMetrics

MIB = 1024 * 1024
TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def server(saved: Callable[..., Path]) -> Iterator[Server]:
    with served(saved("BertForSequenceClassification")) as found:
        yield found


def test_http_response_equals_scoring_script(server: Server, saved: Callable[..., Path]) -> None:
    serve.load(saved("BertForSequenceClassification"))
    expected = serve.run(json.dumps(GOOD))
    status, found, headers = server.post(GOOD)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert [one["label"] for one in found["outputs"]] == [one["label"] for one in expected["outputs"]]
    for one, other in zip(found["outputs"], expected["outputs"], strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], rel=0.02)
    assert json.loads(server.get("/")[1]) == {"status": "ready"}


# Each lies about the length of its body, or exceeds a limit; the number is the status of the response.
LENGTHS = {
    "negative": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "not a number": (HEAD + b"Content-Length: 1e9\r\n\r\n", 400),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "stated too long": (HEAD + b"Content-Length: 1048577\r\n\r\n", 413),
    "absurd length": (HEAD + b"Content-Length: " + b"9" * 19 + b"\r\n\r\n", 413),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 413),
    "chunks with a length": (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
    "endless header": (HEAD + b"X-Long: ", 400),
    "endless request line": (b"GET /", 400),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_body_is_not_read_past_limit(server: Server, name: str) -> None:
    head, status = LENGTHS[name]
    piece = b"10000\r\n" + b"y" * 65536 + b"\r\n" if b"chunked" in head else b"y" * 65536
    before, sent = server.rss(), 0
    with server.connect() as one:
        one.settimeout(10)
        one.sendall(head)
        with suppress(ConnectionError):
            while sent < 64 * MIB:
                sent += one.send(piece)
        answer = received(one)
    # what the kernel buffers on both sides comes on top of the limit
    assert sent < 16 * MIB
    assert server.rss() - before < 16 * MIB
    assert answer == b"" or answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:100]
    assert server.post(GOOD)[0] == 200


@pytest.mark.parametrize("name", LENGTHS)
def test_lying_length_is_refused_with_status(server: Server, name: str) -> None:
    head, status = LENGTHS[name]
    if status == 400 and name.startswith("endless"):
        head += b"y" * 20_000
    if b"chunked" in head:
        head += b"100001\r\n" + b"y" * (MIB + 1)
    assert server.raw(head).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"inputs": [' + b"[" * 100_000,
        b"\xff\xfe",
        b"null",
        b'{"inputs": ["\\ud800"]}',
        b'{"inputs": ["w1"], "top": true}',
        b'{"inputs": ["w1"], "top": ' + b"9" * 5000 + b"}",
        b'{"inputs": [{}]}',
    ],
)
def test_invalid_body_returns_400(server: Server, body: bytes) -> None:
    status, document, _ = server.post(body)
    assert status == 400
    assert document["error"].startswith("invalid request, need")


@pytest.mark.long
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_invalid_chunk_is_refused_once(saved: Callable[..., Path], host: str) -> None:
    """The application either waits for the body or has refused the request; it must neither answer nor wait later."""
    head = f"POST /score HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with served(saved("BertForSequenceClassification")) as server:
        for chunk in (b"0\r\x01\r\n", b"x\r\n", b"-1\r\n", b"1\r\nyyyy"):
            answer = server.raw(head + chunk)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.count(b"HTTP/1.1 ") == 1
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
        assert time.monotonic() - began < STOP_SECONDS, "the server waits for no request"


def test_error_does_not_repeat_texts(server: Server) -> None:
    assert "secret" not in server.post({"inputs": [["secret"]]})[1]["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "10.1.2.3:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
    ],
)
def test_host_and_origin_are_checked(server: Server, headers: dict[str, str], status: int) -> None:
    assert server.post(GOOD, **headers)[0] == status


def test_unknown_path_and_method_are_refused(server: Server) -> None:
    assert (server.get("/nothing")[0], server.get("/score")[0]) == (404, 405)


def test_metrics_count_requests_without_texts(server: Server) -> None:
    before = server.metric('serve_requests_total{code="200"}')
    server.post({"inputs": ["w1 canary"]})
    server.get("/canary")
    text = server.get("/metrics")[1]
    assert server.metric('serve_requests_total{code="200"}') >= before + 2
    for name in ("serve_request_seconds_bucket", "serve_queue_requests", "serve_batch_inputs_bucket"):
        assert name in text
    assert "canary" not in text


@pytest.fixture(scope="module")
def guarded(saved: Callable[..., Path]) -> Iterator[Server]:
    folder = saved("BertForSequenceClassification")
    with served(folder, "--host", "0.0.0.0", "--allow-host", "Model.lan", ORCHESTRATOR_SERVE_TOKEN=TOKEN) as found:
        yield found


def test_token_is_required_but_for_health(guarded: Server) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.post(GOOD, **bearer)[0] == 200
    assert guarded.post(GOOD, Host="model.lan", **bearer)[0] == 200
    assert guarded.get("/healthz")[0] == 200
    for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \u00e9"):
        status, _, headers = guarded.post(GOOD, Authorization=wrong)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert guarded.get("/metrics")[0] == 401
    assert TOKEN not in Path(f"/proc/{guarded.process.pid}/cmdline").read_text()


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [(0o644, TOKEN, "other users may"), (0o620, TOKEN, "other users may"), (0o600, "short", "at least 16")],
)
def test_token_file_is_checked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mode: int,
    text: str,
    reason: str,
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    monkeypatch.setenv("ORCHESTRATOR_SERVE_TOKEN_FILE", str(path))
    assert serve.main(["--model", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert reason in err
    assert text not in err


@pytest.mark.long
def test_deployed_token_is_written_nowhere(
    saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"name": "run-1", "handle": "local://run-1", "state": RunState.COMPLETED, "created": 0.0, "run_hash": ""}
    status = RunStatus.model_validate({**known, "model": str(saved("BertForSequenceClassification"))})
    monkeypatch.setenv("ORCHESTRATOR_SERVE_TOKEN", "short")
    with pytest.raises(ServiceError, match=r"invalid ORCHESTRATOR_SERVE_TOKEN: need at least 16"):
        deploy(tmp_path, status, "masked-words")
    monkeypatch.setenv("ORCHESTRATOR_SERVE_TOKEN", TOKEN)
    found = deploy(tmp_path, status, "masked-words")
    try:
        assert requests.post(found["uri"], json=GOOD, timeout=30).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert requests.post(found["uri"], json=GOOD, headers=headers, timeout=30).status_code == 200
        pid = json.loads((tmp_path / "endpoints" / "masked-words.json").read_text())["pid"]
        assert TOKEN not in Path(f"/proc/{pid}/cmdline").read_text()
    finally:
        delete(tmp_path, "masked-words")
    assert all(TOKEN not in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.long
def test_deployed_model_needs_its_signature(saved: Callable[..., Path], tmp_path: Path) -> None:
    private, public = write_keys(tmp_path)
    folder = shutil.copytree(saved("BertForSequenceClassification"), tmp_path / "bert")
    known = {"name": "run-1", "handle": "local://run-1", "state": RunState.COMPLETED, "created": 0.0, "run_hash": ""}
    status = RunStatus.model_validate({**known, "model": str(folder)})
    with pytest.raises(DataError, match="the model is not signed"):
        deploy(tmp_path, status, "signed", public)
    sign_folder(folder, private)
    found = deploy(tmp_path, status, "signed", public)
    try:
        assert requests.post(found["uri"], json=GOOD, timeout=30).status_code == 200
        pid = json.loads((tmp_path / "endpoints" / "signed.json").read_text())["pid"]
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert words[words.index("--require-signature") + 1] == str(public), "the server checks it again"
    finally:
        delete(tmp_path, "signed")
    (folder / "vocab.txt").write_text("changed")
    with pytest.raises(DataError, match="is not valid"):
        deploy(tmp_path, status, "signed", public)
    assert not (tmp_path / "endpoints" / "signed.json").exists(), "nothing was started"


def test_other_address_needs_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--model", str(tmp_path), "--host", "0.0.0.0"]) == 2
    assert "cannot listen on 0.0.0.0 without a token" in capsys.readouterr().err
    assert serve.main(["--model", str(tmp_path), "--host", "example.org"]) == 2
    assert "invalid --host 'example.org'" in capsys.readouterr().err


def test_loopback_is_the_default(server: Server) -> None:
    # 127.0.0.2 is loopback, but not the address that is listened on
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


@pytest.mark.long
def test_slow_request_is_ended(server: Server) -> None:
    began = time.monotonic()
    with server.connect() as one, server.connect() as two, server.connect() as idle:
        one.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        two.sendall(HEAD + b"X-Slow: 1")
        for _ in range(8):
            time.sleep(0.1)
            one.sendall(b"1")
            two.sendall(b"1")
        assert [received(each)[:13] for each in (one, two, idle)] == [b"HTTP/1.1 408 "] * 3
    assert time.monotonic() - began > 5


@pytest.mark.long
def test_reader_that_does_not_read_is_ended(saved: Callable[..., Path]) -> None:
    request = json.dumps({"inputs": ["w1"] * 64}).encode()
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(request) + request
    with served(saved("BertModel")) as server, server.connect() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.settimeout(2)
        with suppress(OSError):  # pipelined: the server stops reading once its responses are not read
            one.sendall(whole * 10_000)
        deadline = time.monotonic() + 20
        while server.metric('serve_connections_closed_total{why="slow reader"}') < 1:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert server.post({"inputs": ["w1"]})[0] == 200


def test_requests_in_flight_are_answered_on_sigterm(saved: Callable[..., Path]) -> None:
    many = {"inputs": ["w1 w2 w3"] * 64}
    with served(saved("BertForSequenceClassification")) as server, ThreadPoolExecutor(32) as threads:
        replies = [threads.submit(server.post, many) for _ in range(32)]
        while server.metric("serve_queue_requests") == 0 and not replies[-1].done():
            pass
        server.process.send_signal(signal.SIGTERM)
        assert [one.result()[0] for one in replies] == [200] * 32
        assert server.process.wait(30) == 0
        with pytest.raises(ConnectionRefusedError):
            server.connect()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tagger whose longest requests compute for seconds."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = transformers.BertConfig(vocab_size=len(PIECES), max_position_embeddings=512, **sizes)
    transformers.BertForTokenClassification(config).save_pretrained(folder)
    (folder / "pieces.txt").write_text("\n".join(PIECES) + "\n")
    transformers.BertTokenizer(vocab=str(folder / "pieces.txt"), model_max_length=512).save_pretrained(folder)
    return folder


def test_request_of_too_many_sequences_returns_400(saved: Callable[..., Path]) -> None:
    with served(saved("BertForTokenClassification")) as tagger:
        # windows of 32 - 2 tokens that overlap by half
        assert tagger.post({"inputs": ["w1 " * 15 * (MAX_SEQUENCES + 1)]})[0] == 200
        for inputs in (["w1 " * 15 * (MAX_SEQUENCES + 2)], ["w1 " * 15 * 66] * 2):
            status, document, _ = tagger.post({"inputs": inputs})
            assert status == 400
            assert document["error"].startswith("request too large: its texts need 1")
            assert f"the limit is {MAX_SEQUENCES}" in document["error"]
        with ThreadPoolExecutor(4) as threads:  # each request counts alone, also where they are predicted together
            replies = threads.map(lambda _: tagger.post({"inputs": ["w1 " * 15 * 60]}), range(4))
            assert [status for status, _, _ in replies] == [200] * 4


def test_abandoned_request_ends_between_forward_passes(saved: Callable[..., Path]) -> None:
    task = serve.load(saved("BertForTokenClassification"))
    task.forward.batch_tokens = 32  # a forward pass for each sequence
    long, short = (read_request(json.dumps({"inputs": ["w1 " * count]}), task) for count in (1500, 2))
    passes: list[int] = []

    async def run() -> list[object]:
        batches = RequestBatches(task, ServeMetrics())
        loop = asyncio.get_running_loop()
        abandoned = batches.put(long)

        async def leave() -> None:
            abandoned.cancel()

        def after_pass(*_: object) -> None:
            passes.append(len(passes))
            if not abandoned.done():
                asyncio.run_coroutine_threadsafe(leave(), loop).result()

        assert isinstance(task.forward.model, torch.nn.Module)
        with task.forward.model.register_forward_hook(after_pass):
            while not abandoned.done():
                await asyncio.sleep(0.01)
            return await batches.put(short)

    assert len(asyncio.run(run())) == 1
    assert len(passes) == 2


def test_sigterm_ends_long_requests(wide: Path) -> None:
    limits = "import train_jobs.tools.serve_http as http; http.STOP_SECONDS = 1"
    long = {"inputs": ["w1 " * 510 * 60]}
    with served(wide, before=limits) as server, ThreadPoolExecutor(8) as threads:
        replies = [threads.submit(server.post, long) for _ in range(8)]
        while server.metric("serve_queue_requests") == 0 and not replies[-1].done():
            pass
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        codes = [one.result()[0] for one in replies]
        assert set(codes) <= {200, 503}
        assert 503 in codes


def test_full_queue_returns_503(saved: Callable[..., Path]) -> None:
    many = {"inputs": ["w1 w2 w3 w4"] * 64}
    with served(saved("BertForSequenceClassification")) as server, ThreadPoolExecutor(160) as threads:
        replies = [one.result() for one in [threads.submit(server.post, many) for _ in range(160)]]
        codes = {status for status, _, _ in replies}
        assert codes == {200, 503}
        assert {headers["retry-after"] for status, _, headers in replies if status == 503} == {"1"}
        assert server.post(GOOD)[0] == 200


def test_batched_predictions_equal_single_ones(server: Server) -> None:
    random = Random(1)
    documents = [
        {"inputs": [" ".join(random.choices(["w1", "w2", "w3", "w4"], k=random.randint(1, 12)))], "top": 1 + number % 2}
        for number in range(64)
    ]
    documents[5] = {"inputs": [1]}  # refused without harm to the others
    documents[6] = {"inputs": [{"text": "w1", "pair": "w2"}]}
    alone = [server.post(one)[:2] for one in documents]
    batches = server.metric("serve_batch_inputs_count")
    with ThreadPoolExecutor(16) as threads:
        together = [reply[:2] for reply in threads.map(server.post, documents)]
    assert server.metric("serve_batch_inputs_count") - batches < 63  # some shared a batch
    assert [status for status, _ in together] == [status for status, _ in alone]
    for (status, one), (_, other) in zip(together, alone, strict=True):
        if status == 200:
            assert one["outputs"][0]["label"] == other["outputs"][0]["label"]
            assert one["outputs"][0]["probabilities"] == pytest.approx(other["outputs"][0]["probabilities"], rel=0.02)


def latencies(server: Server, seconds: float) -> list[float]:
    """Return the seconds that good requests took, one after the other; all must be answered with 200.

    On a loaded machine this process may need more than a second to send one, which is then answered with 408.
    """
    found, late, over = list[float](), 0, time.monotonic() + seconds
    while time.monotonic() < over:
        began = time.monotonic()
        status = server.post(GOOD)[0]
        assert status in {200, 408}
        late += status == 408
        found.append(time.monotonic() - began)
        time.sleep(0.02)
    assert late <= len(found) // 20, f"{late} of {len(found)} were sent too slowly"
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("slow", "seconds"), [(300, 4.0), pytest.param(1000, 30.0, marks=pytest.mark.slow)], ids=["quick", "full"]
)
def test_good_requests_are_answered_under_attack(saved: Callable[..., Path], slow: int, seconds: float) -> None:
    """1,000 slow connections and 100 requests of garbage a second: good requests are answered, memory is flat.

    The time limit of a good request is its client's. The usual times are printed: they depend on the machine's load.
    """
    with served(saved("BertForSequenceClassification")) as server:
        before = latencies(server, min(seconds, 5.0))
        with attacked(server, "slow", slow) as opened, attacked(server, "garbage", 100) as sent:
            time.sleep(1.0)
            resting = server.rss()
            during = latencies(server, seconds)
            grown = server.rss() - resting
        print(
            f"\n{opened[0]} slow connections, {sent[0]} requests of garbage in {seconds:.0f} s;"
            f" good requests: {len(before)} before, median {1e3 * statistics.median(before):.1f} ms, worst"
            f" {1e3 * max(before):.1f} ms; {len(during)} during, median {1e3 * statistics.median(during):.1f} ms, worst"
            f" {1e3 * max(during):.1f} ms; RSS {resting / MIB:.0f} MiB, grown by {grown / MIB:.1f} MiB"
        )
        assert sent[0] > 20 * seconds
        assert grown < 32 * MIB
        assert server.process.poll() is None
    assert server.process.returncode == 0
