"""Every command line of README and docs is one that its program takes; what plans something plans it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from documents import PROGRAMS, ROOT, blocks, command_lines

from orchestrator.cli.main import build_parser, main
from tests.conftest import MICRO, write_corpus
from train_jobs import finetune, onnx, predict, prepare, pretrain, serve

COMMANDS = sorted({words: place for place, words in reversed([*command_lines()])}.items())
NOT_PLANNED = {
    "google-bert/": "asks the Hugging Face Hub",
    "--model RUN": "a fine-tuned run, which takes its time",
    "large-nvidia-phase2": "a phase of 512 tokens goes on from one of BERT-large",
    "-b polite": "a backend of another package, which tests/contract installs",
    "hidden_size=64": "shows an error",
    "ORCHESTRATOR_": "a variable, not a command",
}
JOBS = {job.__name__.removeprefix("train_jobs."): job for job in (finetune, onnx, predict, prepare, pretrain, serve)}


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


@pytest.mark.parametrize(("line", "place"), COMMANDS)
def test_it_is_a_program_that_is_known(line: str, place: str) -> None:
    assert words_of(line)[0] in PROGRAMS, place


@pytest.mark.parametrize(("line", "place"), [one for one in COMMANDS if one[0].startswith("orchestrator ")])
def test_the_command_line_takes_it(line: str, place: str) -> None:
    arguments, unknown = build_parser().parse_known_args(words_of(line)[1:])
    assert (arguments.verb, unknown) == (words_of(line)[1], []), place


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as the documents have it, and a home with a run named novels."""
    folder = tmp_path_factory.mktemp("documented")
    for name in ("notes", "letters", "books", "wiki", "dumps"):
        (folder / name).mkdir()
        write_corpus(folder / name / "text.txt")
    (folder / "words.txt").write_text("tachycardia\nstent\n")
    for place, columns in (("glue_data/MRPC", "header"), ("own", "review\tstars")):
        (folder / place).mkdir(parents=True)
        for split in ("train", "dev"):
            (folder / place / f"{split}.tsv").write_text(f"{columns}\nGood.\t1\nBad.\t0\n")
    reviews = "train: train.tsv\nvalidation: dev.tsv\ntext: review\nlabel: stars\n"
    (folder / "own" / "reviews.yaml").write_text(reviews)
    (folder / "docs").symlink_to(ROOT / "docs")
    job = next(block.text for block in blocks("yaml") if block.text.startswith("# job.yaml\n"))
    (folder / "job.yaml").write_text(job)
    micro = {**MICRO, "data": {**MICRO["data"], "text": ["books"]}}
    micro["model"] = {**MICRO["model"], "max_position_embeddings": 512}
    (folder / "micro.yaml").write_text(yaml.safe_dump(micro))
    before, place = dict(os.environ), Path.cwd()
    os.environ.update({"ORCHESTRATOR_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""})
    os.chdir(folder)
    try:
        assert main(["submit", "pretrain", "-f", "micro.yaml", "-n", "novels"]) == 0
        assert (
            main(["submit", "prepare", "--data", "wiki", "--store", "stores/wiki", "--set", "data.vocab_size=256"]) == 0
        )
        assert main(["submit", "pretrain", "-f", "micro.yaml", "-n", "last", "--set", "train.seed=1"]) == 0
        yield folder
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(before)


def planned() -> list[tuple[str, str]]:
    verbs = ("submit", "plan", "validate")
    found = [one for one in COMMANDS if one[0].startswith("orchestrator ") and words_of(one[0])[1] in verbs]
    return [one for one in found if not any(part in one[0] for part in NOT_PLANNED)]


@pytest.mark.slow  # two runs are made first
@pytest.mark.parametrize(("line", "place"), planned())
def test_a_dry_run_of_it_is_a_plan(line: str, place: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(line)[1:]
    if words[0] == "submit" and "--dry-run" not in words:
        words.append("--dry-run")
    code = main([word.replace("SUBSCRIPTION", "s") for word in words])
    assert code == 0, f"{place}: {capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "docs/sdk.md"])
def test_the_sdk_s_example_runs(document: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (block.text for block in blocks("python") if block.document == document)
    exec(example.replace('"train.steps": 500', '"train.steps": 2, "train.micro_batch_size": 8'), {})
    assert "data" in capsys.readouterr().out


def plain_jobs() -> list[tuple[str, str]]:
    return [one for one in COMMANDS if "train_jobs." in one[0] and words_of(one[0])[0] in {"python", "torchrun"}]


@pytest.mark.parametrize(("line", "place"), plain_jobs())
def test_a_plain_job_takes_its_arguments(line: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(line)
    module = words[words.index("-m") + 1]
    job = JOBS[module.removeprefix("train_jobs.")]
    with pytest.raises(SystemExit) as ended:
        job.main([*words[words.index(module) + 1 :], "--help"])
    assert ended.value.code == 0, place
    known = capsys.readouterr().out
    given = {word for word in words[words.index(module) + 1 :] if word.startswith("--")}
    assert not [flag for flag in given if flag not in known], place


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return {line.split(":")[0] for line in text.splitlines() if ":" in line and line[:1].isalpha()}


def test_make_has_the_targets() -> None:
    named = {words_of(line)[1] for line, _ in COMMANDS if line.startswith("make ")}
    assert named
    assert named <= make_targets()


def test_what_is_not_planned_is_there_for_a_reason_that_still_holds() -> None:
    lines = [line for line, _ in COMMANDS]
    assert [part for part in NOT_PLANNED if not any(part in line for line in lines)] == []
