"""Job files of `az ml` with every key of Azure's schema in many forms, right and wrong, compared with Azure's SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.support.errors import SpecError
from tests.unit.azure.az_ml_bodies import check_alike, our_body

pytestmark = pytest.mark.slow
COMMAND = "command: python train.py\nenvironment: azureml:mine:1\ncompute: azureml:gpu\n"
QUEUED = "command: echo\nenvironment: azureml:mine:1\nresources: {instance_type: Standard_D4s_v5}\n"
UNSET = "command: echo\ncompute: azureml:gpu\n"
SWEEP = """\
type: sweep
trial: {code: ../src, command: "train --a ${{search_space.a}}", environment: "azureml:e:1"}
compute: azureml:gpu
objective: {goal: minimize, primary_metric: loss}
sampling_algorithm: random
limits: {max_total_trials: 4}
search_space: {a: {type: uniform, min_value: 0, max_value: 1}}
"""
OTHERS = {
    "environment": UNSET,
    "queue_settings": QUEUED,
    "command": "environment: azureml:e:1\ninputs: {a: 1}\noutputs: {o: {type: uri_file}}\n",
    "sampling_algorithm": SWEEP.replace("uniform, min_value: 0, max_value: 1", "choice, values: [1, 2]"),
    **dict.fromkeys(("search_space", "early_termination", "trial", "objective"), SWEEP),
}
"""Key -> the other keys of its file, unless they are COMMAND or, for a title that ends with "of a sweep", SWEEP."""
WHOLE = {
    "literal block": b"command: |+\n  set -e\n  python \\\n    train.py\n\n\nenvironment: azureml:mine:1\n",
    "folded block": b"command: >-\n  python\n  train.py\n\n  second\nenvironment: azureml:mine:1\n",
    "JSON": b'{"command": "echo ${{inputs.a}}", "environment": "azureml:e:1", "inputs": {"a": "b: c #d"}}',
    "scalar anchors": b"command: &c echo\nenvironment: &e azureml:e:1\ndescription: *c\ndisplay_name: *e\n",
    "merged list": COMMAND.encode() + b"tags: &a {x: y}\nproperties:\n  <<: [*a, {z: w}]\n  x: other\n",
    "merged parameter": SWEEP.encode().replace(b"{a: {", b"{a: &u {").rstrip(b"}\n")
    + b"}, b: *u, c: {<<: *u, max_value: 2}}\n",
    "alias of itself": COMMAND.encode() + b"tags: &a\n  x: *a\n",
    "tabs": b"command:\techo\nenvironment:\tazureml:e:1\n",
    "directives": b"%YAML 1.1\n---\ncommand: echo\nenvironment: azureml:e:1\n...\n",
    "CR LF": COMMAND.replace("\n", "\r\n").encode(),
    "UTF-16": COMMAND.encode("utf-16"),
    "Latin-1": "command: echo\nenvironment: azureml:e:1\ndescription: \xfc\n".encode("latin-1"),
    "NUL": b"command: echo\nenvironment: azureml:e\0\n",
    "explicit key": b'"command": "echo"\n? environment\n: azureml:e:1\n',
}


def _values() -> dict[str, list[str]]:
    """Return title, which begins with the key -> the values of the key, one on each line of the file."""
    found: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("az_ml_jobs").joinpath("values.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            values = found[line.removeprefix("## ")] = []
        else:
            values.append(line)
    return found


VALUES = _values()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path for a job file, with its code and data next to its folder."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    for name, text in {
        "src/train.py": "print()\n",
        "docker/Dockerfile": "FROM python:3.11\n",
        "text/a.txt": "a\n",
        "conda.yml": "name: c\ndependencies: [python=3.11]\n",
        "jobs/job.yml": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "jobs" / "job.yml"


@pytest.mark.parametrize("title", VALUES)
def test_value_is_read_as_by_the_sdk(title: str, write: Path) -> None:
    key, _, of_sweep = title.partition(" of ")
    rest = SWEEP if of_sweep else OTHERS.get(key, COMMAND)
    others = "".join(line + "\n" for line in rest.splitlines() if not line.startswith(f"{key}:"))
    for value in VALUES[title]:
        write.write_text(f"{others}{key}: {value}\n", encoding="utf-8")
        try:
            check_alike(write)
        except AssertionError as problem:
            raise AssertionError(f"{key}: {value}: {problem}") from problem


@pytest.mark.parametrize("title", WHOLE)
def test_form_of_yaml_is_read_as_by_the_sdk(title: str, write: Path) -> None:
    write.write_bytes(WHOLE[title])
    check_alike(write)


@pytest.mark.parametrize("value", ["{shm_size: 2gb}", "{instance_count: 0}", "{instance_count: -1}"])
def test_value_that_only_the_service_refuses_has_its_line(value: str, write: Path) -> None:
    for number, text in ((4, COMMAND), (8, SWEEP)):
        write.write_text(f"{text}resources: {value}\n")
        problem = our_body(write)
        assert isinstance(problem, SpecError)
        assert f"job.yml:{number}: resources." in problem.problems[0]
