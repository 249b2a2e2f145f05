"""A newcomer's walk: 300 notes and a table of labels to a served classifier, in four commands and one request.

    python -m benchmarks.first_contact
    python -m benchmarks.first_contact --data FOLDER   # only writes the notes, to try the commands yourself

Prints each command with its time, and the accuracy on 200 notes that no command has read: with the default settings,
with those of BERT-base, which were the defaults before, and with settings chosen by hand.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

WARDS = {
    "cardiology": "chest pain, palpitations, systolic murmur, ST elevation, heart failure, atrial fibrillation",
    "dermatology": "itching rash, scaly plaques, erythema, pruritus, suspicious mole, eczema of both hands",
    "neurology": "headache, hemiparesis, seizure, numbness of the left arm, tremor at rest, diplopia",
    "orthopedics": "knee pain, swelling after a fall, distal radius fracture, limited range of motion, sprain",
}
COMMON = [
    "The patient was admitted in stable condition",
    "Vital signs were within normal limits",
    "No known allergies",
    "Medication was continued",
    "The family was informed",
    "Follow-up in two weeks was recommended",
    "Laboratory values were unremarkable",
    "The patient lives alone",
    "Discharge is planned for tomorrow.",
]
SETTINGS = {
    "default": "",
    "as BERT-base": "--set optimizer.learning_rate=2e-5 --set train.epochs=3",
    "by hand": "--set optimizer.learning_rate=1e-3 --set train.epochs=12",
}


def note(draw: random.Random, ward: str) -> str:
    """Return a note: common sentences, with findings of the ward and sometimes one of another ward."""
    findings = draw.sample(WARDS[ward].split(", "), 2)
    if draw.random() < 0.4:
        findings.append("no " + draw.choice(WARDS[draw.choice([one for one in WARDS if one != ward])].split(", ")))
    sentences = [*draw.sample(COMMON, 4), "Findings: " + ", ".join(findings)]
    draw.shuffle(sentences)
    return ". ".join(sentences) + f". Case {draw.randrange(10_000)}."


def write_data(folder: Path) -> None:
    """Write 300 notes, labels of 200 of them, and 200 other notes with their labels apart."""
    draw = random.Random(7)
    rows = [(number, note(draw, ward), ward) for number, ward in enumerate(sorted(WARDS) * 125)]
    (folder / "notes.jsonl").write_text(
        "".join(json.dumps({"id": row[0], "note": row[1]}) + "\n" for row in rows[:300])
    )
    for name, part in (("wards.csv", rows[:200]), ("new.csv", rows[300:])):
        with (folder / name).open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows([("id", "note", "ward"), *part])


def run(words: str, folder: Path) -> tuple[str, float]:
    """Run a command of ours; return its stdout and seconds."""
    command = [sys.executable, "-m", "orchestrator.cli.main", *shlex.split(words)]
    environ = {**os.environ, "ORCHESTRATOR_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
    begin = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"orchestrator {words}\n{done.stderr}")
    return done.stdout, time.monotonic() - begin


def accuracy(folder: Path, file: str) -> float:
    """Return the share of the new notes whose predicted ward is right."""
    with (folder / "new.csv").open(newline="") as stream:
        truth = {row["id"]: row["ward"] for row in csv.DictReader(stream)}
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return sum(truth[str(row["id"])] == row["label"] for row in rows) / len(truth)


def main() -> None:
    """Print the walk, or only write its data."""
    parser = argparse.ArgumentParser(description="Walk from notes to a served classifier, and measure it.")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="only write notes.jsonl, wards.csv and new.csv here"
    )
    if folder := parser.parse_args().data:
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        return
    print(describe("torch"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        pretrain = "submit pretrain --data notes.jsonl --column note -n notes -o json"
        print(f"{run(pretrain, folder)[1]:6.0f} s  orchestrator {pretrain}")
        for which, settings in SETTINGS.items():
            columns = "--column text=note --column label=ward"
            tune = f"submit finetune --model notes --data wards.csv {columns} {settings} -o json"
            out, seconds = run(tune, folder)
            model = json.loads(out)["name"]
            predict = f"submit predict --model {model} --input new.csv --column id=id --output {model}.jsonl -o json"
            later = run(predict, folder)[1]
            print(f"{seconds:6.0f} s  orchestrator {tune}\n{later:6.0f} s  orchestrator {predict}")
            print(f"          {which}: accuracy {accuracy(folder, f'{model}.jsonl'):.3f} of 200 notes")
            if which == "default":
                deploy = f"model deploy {model} --endpoint wards -o json"
                served, seconds = run(deploy, folder)
                print(f"{seconds:6.0f} s  orchestrator {deploy}")
                try:
                    print(f"          the endpoint answers: {_ask(json.loads(served)['uri'])}")
                finally:
                    run("model delete wards -y", folder)


def _ask(uri: str) -> str:
    body = json.dumps({"inputs": ["Findings: chest pain, palpitations."]}).encode()
    request = urllib.request.Request(uri, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode()[:200])


if __name__ == "__main__":
    main()
