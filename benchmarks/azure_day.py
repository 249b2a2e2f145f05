"""Check by the commands of a user what only a real workspace of Azure ML can show, in about 45 minutes.

    python -m benchmarks.azure_day --region eastus            # make azure-day

It needs a subscription, `az login` and the variables ORCHESTRATOR_AZURE_SUBSCRIPTION_ID, _RESOURCE_GROUP, _WORKSPACE.
It creates the cluster azure-day of at most one machine, runs six small jobs on it and one on serverless compute, and
deletes it. A check that passed is not repeated: start it again after an interruption. azure-day/results.jsonl has all
results, table.md the table.

    python -m benchmarks.azure_day --pin-images

asks the registry for the digests of the base images and writes them into the facts and the Dockerfile. It needs no
subscription.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.backends.azure.catalogue import BaseImage
from orchestrator.support.formatting import duration

CLUSTER = "azure-day"
WORKSPACE = "ORCHESTRATOR_AZURE_WORKSPACE"
REGISTRY = "https://mcr.microsoft.com"
ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "environments" / "train-gpu" / "Dockerfile"
IMAGES = ROOT / "orchestrator" / "backends" / "azure" / "data" / "images.json"
MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
        "oci.image.index.v1",
        "oci.image.manifest.v1",
    )
)
COMMAND_SECONDS = 1800.0  # of one command: an image build and the allocation of a machine take up to 20 minutes
REGISTRY_SECONDS = 30.0
IDLE_SECONDS = 900.0  # until an idle cluster has no machine


class CheckFailed(Exception):  # noqa: N818
    """A promise that did not hold."""


@dataclass
class Day:
    """One workspace, the folder of the results, and what earlier checks found out."""

    folder: Path
    region: str
    sku: str
    tier: str
    registry: str = REGISTRY
    facts: dict[str, Any] = field(default_factory=dict)
    """Names of runs and similar facts that later checks use."""

    def __call__(self, *arguments: str, home: str = "home", words: tuple[str, ...] = ()) -> Any:
        """Run a command of orchestrator; return its document.

        Args:
            arguments: of the command.
            home: name of its home folder.
            words: the program and its arguments, of `submit command`.

        Raises:
            CheckFailed: its exit code is not 0.
        """
        after = ("--", *words) if words else ()
        command = [sys.executable, "-m", "orchestrator.cli.main", *arguments, "-o", "json", *after]
        environ = {**os.environ, "ORCHESTRATOR_HOME": str(self.folder / home)}
        with (self.folder / "commands.log").open("a", encoding="utf-8") as log:
            log.write(f"\n$ orchestrator {' '.join((*arguments, *after))}\n")
            log.flush()
            try:
                done = subprocess.run(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=self.folder,
                    env=environ,
                    timeout=COMMAND_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as problem:
                raise CheckFailed(
                    f"orchestrator {arguments[0]} took more than {duration(COMMAND_SECONDS)}"
                ) from problem
            log.write(done.stdout)
        if done.returncode:
            raise CheckFailed(f"orchestrator {' '.join(arguments[:2])} ended with exit code {done.returncode}")
        with suppress(json.JSONDecodeError):
            return json.loads(done.stdout)
        return done.stdout

    def spec(self, name: str, **sections: Any) -> str:
        """Write the spec of a small pretraining on the cluster; return its path."""
        text = self.folder / "text.txt"
        if not text.exists():
            pages = sorted((ROOT / "docs").glob("*.md"))
            text.write_text("\n\n".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")
        spec = {
            "recipe": "tiny",
            "name": name,
            "backend": "azure",
            "data": {"text": [str(text)], "vocab_size": 256},
            "train": {"steps": 20, "log_every": 2},
            "checkpoint": {"every": 5},
            "compute": {"cluster": CLUSTER, "sku": self.sku, "tier": self.tier},
            **sections,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
        return str(path)


def expect(condition: bool, text: str) -> None:
    """Raise CheckFailed with a text unless a condition holds."""
    if not condition:
        raise CheckFailed(text)


def handle_of(name: str) -> str:
    """Return the handle of a run, by which a home folder finds it that did not submit it."""
    return f"azure://{os.environ[WORKSPACE]}/{name}"


def signed_in(day: Day) -> str:
    findings = day("doctor", "-b", "azure")
    bad = [one["name"] for one in findings if one["level"] == "fail"]
    expect(not bad, f"doctor fails: {', '.join(bad)}")
    return f"{len(findings)} findings, none failing"


def images_have_digests(day: Day) -> str:
    found = {name: _digest(day.registry, one["image"], one["tag"]) for name, one in _images().items()}
    return "; ".join(f"{name} {digest}" for name, digest in found.items())


def _images() -> Mapping[str, Mapping[str, str]]:
    items: Mapping[str, Mapping[str, str]] = json.loads(IMAGES.read_text(encoding="utf-8"))["items"]
    return items


def _digest(registry: str, image: str, tag: str) -> str:
    """Return the digest of a tag, as the registry's API of Docker reports it."""
    place = image.partition("/")[2]
    request = urllib.request.Request(
        f"{registry}/v2/{place}/manifests/{tag}", headers={"Accept": MANIFESTS}, method="HEAD"
    )
    try:
        # `urlopen` would keep the proxy of its first call
        with urllib.request.build_opener().open(request, timeout=REGISTRY_SECONDS) as reply:
            return str(reply.headers["Docker-Content-Digest"])
    except OSError as problem:
        raise CheckFailed(f"{image}:{tag}: {problem}") from problem


def pin_images(registry: str, images: Path = IMAGES, dockerfile: Path = DOCKERFILE) -> list[str]:
    """Write the digests of the base images into the facts and the Dockerfile; return a line for each image.

    Args:
        registry: address of the registry.
        images: file of the facts.
        dockerfile: of the image for GPUs.

    Raises:
        CheckFailed: the registry does not answer, or lacks a tag.
    """
    facts = json.loads(images.read_text(encoding="utf-8"))
    docker, lines = dockerfile.read_text(encoding="utf-8"), []
    for name, one in facts["items"].items():
        before = BaseImage(**one)
        one["digest"] = _digest(registry, one["image"], one["tag"])
        after = BaseImage(**one)
        docker = docker.replace(f"ARG BASE={before.reference}\n", f"ARG BASE={after.reference}\n")
        lines.append(f"{name}: {after.reference}, tag {after.tag}")
    facts |= {"source": f"digests of these tags at {registry}", "date": datetime.now(UTC).date().isoformat()}
    images.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    dockerfile.write_text(docker, encoding="utf-8")
    return lines


def prices_are_current(day: Day) -> str:
    sizes = day("skus", "--refresh", "--region", day.region)
    own = next((one for one in sizes if one["name"] == day.sku), None)
    expect(own is not None and own["price"] is not None, f"no price of {day.sku}")
    return f"{day.sku}: ${own['price']} an hour, Spot {own['spot_price']}, of {own['price_date']}"


def cluster_is_created(day: Day) -> str:
    words = ("--sku", day.sku, "--tier", day.tier, "--min-nodes", "0", "--max-nodes", "1", "--idle-seconds", "120")
    day("cluster", "create", "--name", CLUSTER, *words, "-y")
    expect(CLUSTER in [one["name"] for one in day("cluster", "list")], "the cluster is not listed")
    return f"{day.tier}, 0 to 1 machines of {day.sku}"


def job_completes(day: Day) -> str:
    started = time.monotonic()
    status = day("submit", "pretrain", "-f", day.spec("azure-day-first"))
    expect((status["state"], status["step"]) == ("completed", 20), f"{status['state']} at step {status['step']}")
    day.facts["first"] = status["name"]
    waited = status["started"] - status["created"] if status["started"] else 0.0
    return f"{duration(time.monotonic() - started)}, of it {duration(waited)} before the job began"


def same_submission_is_one_job(day: Day) -> str:
    status = day("submit", "pretrain", "-f", day.spec("azure-day-first"))
    expect(status["name"] == day.facts["first"], f"another run: {status['name']}")
    return status["name"]


def other_machine_follows(day: Day) -> str:
    handle = day("status", day.facts["first"])["handle"]
    expect(day("attach", handle, home="elsewhere")["state"] == "completed", "attach does not see its end")
    log = day("logs", day.facts["first"], home="elsewhere")
    expect("step" in json.dumps(log), "the log has no step")
    return handle


def model_is_downloaded(day: Day) -> str:
    day("download", day.facts["first"], "model", "checkpoints", "--to", "downloaded")
    weights = [*(day.folder / "downloaded").rglob("model.safetensors")]
    expect(bool(weights), "no model.safetensors")
    return f"{weights[0].stat().st_size:,} bytes of weights"


def preempted_run_goes_on(day: Day) -> str:
    spec = day.spec("azure-day-preempted", train={"steps": 400, "log_every": 2}, max_preemptions=2)
    name = day.facts["preempted"] = day("submit", "pretrain", "-f", spec, "-d")["name"]
    _wait_for_step(day, name, 10)
    day("preempt", name)
    status = day("wait", name)
    expect(status["state"] == "completed", f"{status['state']}: {status['reason']}")
    expect(status["attempt"] >= 2, "it was not restarted")
    return f"{status['attempt']} attempts, step {status['step']}"


def azure_restarts_a_run(day: Day) -> str:
    azure = {"supervise": "cloud", "supervise_minutes": 5, "identity": "managed", "cluster_identity": "system"}
    spec = day.spec("azure-day-supervised", train={"steps": 400, "log_every": 2, "seed": 3}, azure=azure)
    name = day("submit", "pretrain", "-f", spec, "-d")["name"]
    _wait_for_step(day, name, 10)
    day("preempt", name)
    (day.folder / "home").rename(day.folder / f"home-{time.time_ns()}")  # nothing here restarts it
    deadline, handle = time.monotonic() + COMMAND_SECONDS, handle_of(name)
    while time.monotonic() < deadline:
        status = day("status", handle, home=f"look-{time.time_ns()}")
        if status["state"] == "completed":
            return f"{status['attempt']} attempts"
        time.sleep(float(os.environ.get("ORCHESTRATOR_AZURE_POLL_SECONDS", "30")))
    raise CheckFailed(f"the run did not complete in {duration(COMMAND_SECONDS)}: see jobs supervise-{name}")


def serverless_job_runs_a_command(day: Day) -> str:
    (day.folder / "program").mkdir(exist_ok=True)
    (day.folder / "program" / "hello.py").write_text("print('hello from Azure')\n", encoding="utf-8")
    place = ("-b", "azure", "--cluster", "serverless", "--sku", day.sku, "--tier", day.tier, "--code", "program")
    status = day("submit", "command", *place, "--set", "azure.preflight=false", words=("python", "hello.py"))
    expect(status["state"] == "completed", f"{status['state']}: {status['reason']}")
    expect("hello from Azure" in json.dumps(day("logs", status["name"])), "its log lacks the line")
    return f"{day.tier}, 1 x {day.sku}, after {duration(status['started'] - status['created'])} in the queue"


def data_asset_is_created(day: Day) -> str:
    day.spec("azure-day-data")
    row = day("data", "asset", "create", "azure-day", "text.txt")
    expect(day("data", "asset", "show", row["use"].removeprefix("azureml:")) == row, "the asset is not shown")
    return str(row["use"])


def cancelled_run_resumes(day: Day) -> str:
    spec = day.spec("azure-day-cancelled", train={"steps": 400, "log_every": 2, "seed": 2})
    name = day("submit", "pretrain", "-f", spec, "-d")["name"]
    _wait_for_step(day, name, 10)
    day("cancel", name)
    expect(day("status", name)["state"] == "cancelled", "it is not cancelled")
    status = day("resume", name)
    expect((status["state"], status["step"]) == ("completed", 400), f"{status['state']} at step {status['step']}")
    return f"{status['attempt']} attempts"


def _wait_for_step(day: Day, name: str, step: int) -> None:
    deadline = time.monotonic() + COMMAND_SECONDS
    while time.monotonic() < deadline:
        status = day("status", name)
        if (status["step"] or 0) >= step:
            return
        expect(status["state"] not in ("failed", "cancelled", "completed"), f"it ended too early: {status['state']}")
        time.sleep(float(os.environ.get("ORCHESTRATOR_AZURE_POLL_SECONDS", "10")))
    raise CheckFailed(f"step {step} was not reported in {duration(COMMAND_SECONDS)}")


def sweep_of_the_service_completes(day: Day) -> str:
    trial = day.spec("azure-day-trial")
    space = {"optimizer.learning_rate": [0.001, 0.002]}
    document = {"name": "azure-day-sweep", "trial": trial, "space": space, "sampling": "grid"}
    path = day.folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    found = day("submit", "sweep", "-f", str(path))
    expect(found["state"] == "completed", f"{found['state']}: {found['reason']}")
    best = day("sweep", "best", found["name"])
    return f"best of 2: {best['settings']}"


def model_is_registered(day: Day) -> str:
    found = day("model", "register", handle_of(day.facts["first"]), "--name", "azure-day")
    return f"azure-day:{found['version']}"


def idle_cluster_has_no_machines(day: Day) -> str:
    started = time.monotonic()
    while (nodes := day("cluster", "show", "--name", CLUSTER)["nodes"]) and time.monotonic() - started < IDLE_SECONDS:
        time.sleep(float(os.environ.get("ORCHESTRATOR_AZURE_POLL_SECONDS", "15")))
    expect(not nodes, f"{nodes} machines after {duration(IDLE_SECONDS)}")
    return f"none after {duration(time.monotonic() - started)}"


def cluster_is_deleted(day: Day) -> str:
    day("cluster", "delete", "--name", CLUSTER, "-y")
    expect(CLUSTER not in [one["name"] for one in day("cluster", "list")], "the cluster is still listed")
    return "the model azure-day and the files of the runs remain in the workspace"


class Check(NamedTuple):
    """A promise, and the function that tries it."""

    promise: str
    run: Callable[[Day], str]
    """Returns what was seen; raises CheckFailed."""

    @property
    def name(self) -> str:
        """Its name in the results."""
        return self.run.__name__


CHECKS = (
    Check("Sign-in, workspace, datastore and quota", signed_in),
    Check("The base images exist; their digests", images_have_digests),
    Check("Prices and sizes of the region", prices_are_current),
    Check("A cluster that has no machines while it is idle", cluster_is_created),
    Check("A submission: image build, start of a machine, training, export", job_completes),
    Check("The same submission again returns the completed run", same_submission_is_one_job),
    Check("A machine without a record of the run attaches, lists and reads logs", other_machine_follows),
    Check("Model and checkpoints, whose hashes are checked", model_is_downloaded),
    Check("A preempted run is restarted from its last checkpoint by a command that follows it", preempted_run_goes_on),
    Check("Azure restarts a preempted run by a schedule, without this machine", azure_restarts_a_run),
    Check("Any command as a job, on serverless machines", serverless_job_runs_a_command),
    Check("A data asset of the user's files, named by its content", data_asset_is_created),
    Check("A cancelled run resumes from its checkpoint", cancelled_run_resumes),
    Check("Azure ML's own sweep service runs two trials and names the best", sweep_of_the_service_completes),
    Check("The model becomes a version in the workspace's registry", model_is_registered),
    Check("An idle cluster releases its machine", idle_cluster_has_no_machines),
    Check("Nothing that costs money is left", cluster_is_deleted),
)


class Row(NamedTuple):
    """The result of one check."""

    check: str
    passed: bool
    seconds: float
    detail: str
    date: str
    facts: dict[str, Any]


def read_rows(folder: Path) -> dict[str, Row]:
    """Return the last result of each check that ran."""
    path = folder / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row.check: row for row in (Row(**json.loads(line)) for line in lines)}


def table(rows: Mapping[str, Row]) -> str:
    """Return the results as a table in Markdown, those that did not run too."""
    lines = ["| promise | result | seconds | what was seen | date |", "| --- | --- | --- | --- | --- |"]
    for check in CHECKS:
        row = rows.get(check.name)
        if row is None:
            lines.append(f"| {check.promise} | not tried | | | |")
        else:
            result = "holds" if row.passed else "**does not hold**"
            detail = row.detail.replace("|", "\\|")
            lines.append(f"| {check.promise} | {result} | {row.seconds:.0f} | {detail} | {row.date} |")
    return "\n".join(lines) + "\n"


def run_checks(day: Day) -> Iterator[Row]:
    """Run the checks that have not passed, and yield the result of each; end at the first one that later ones need."""
    day.folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(day.folder)
    for row in rows.values():
        day.facts |= row.facts
    for check in CHECKS:
        if (known := rows.get(check.name)) is not None and known.passed:
            continue
        started = time.monotonic()
        try:
            passed, detail = True, check.run(day)
        except CheckFailed as problem:
            passed, detail = False, str(problem)
        except KeyError as problem:  # a fact of an earlier check that failed, or a document without a key
            passed, detail = False, f"no {problem}"
        row = Row(
            check=check.name,
            passed=passed,
            seconds=round(time.monotonic() - started, 1),
            detail=detail,
            date=datetime.now(UTC).date().isoformat(),
            facts=dict(day.facts),
        )
        rows[row.check] = row
        with (day.folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row._asdict()) + "\n")
        (day.folder / "table.md").write_text(table(rows), encoding="utf-8")
        yield row
        if check.run is signed_in and not passed:
            return


def main(words: list[str] | None = None) -> int:
    """Run the checks; the exit code is 1 if any does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("azure-day"), help="folder of the results")
    parser.add_argument("--region", default="eastus", help="region of the workspace, for prices")
    parser.add_argument("--sku", default="Standard_D4s_v5", help="size of the machine")
    parser.add_argument("--tier", default="spot", choices=["spot", "dedicated"], help="tier of the machine")
    parser.add_argument("--registry", default=REGISTRY, help="registry of the base images")
    parser.add_argument("--pin-images", action="store_true", help="write the digests of the base images, and exit")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask before machines are paid for")
    chosen = parser.parse_args(words)
    if chosen.pin_images:
        print("\n".join(pin_images(chosen.registry)))
        return 0
    if not chosen.yes:
        print(f"This creates cluster {CLUSTER} ({chosen.tier}, at most 1 x {chosen.sku}) and runs 7 small jobs.")
        if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    day = Day(chosen.folder.absolute(), chosen.region, chosen.sku, chosen.tier, chosen.registry)
    for row in run_checks(day):
        print(f"{'holds' if row.passed else 'FAILS':<6} {row.seconds:6.0f} s  {row.check}: {row.detail}", flush=True)
    print(f"\n{day.folder / 'table.md'}; all commands and their errors: {day.folder / 'commands.log'}")
    rows = read_rows(day.folder)
    return 0 if all(check.name in rows and rows[check.name].passed for check in CHECKS) else 1


if __name__ == "__main__":
    sys.exit(main())
