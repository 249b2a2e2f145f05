"""Memory warnings of a plan: GPUs of this machine, GPUs of Azure, main memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.jobs.base import Plan
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.specs.resolved import Flag
from orchestrator.sweeps.design.sweep_plan import SpecContext, resolve_sweep
from orchestrator.sweeps.driver.planning import plan_sweep
from tests.conftest import SMALL_TEXT, write_bert
from tests.unit.orchestrator.test_doctor import program

T4 = "Tesla T4, 15360 MiB"
A100 = "NVIDIA A100-SXM4-40GB, 40960 MiB"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
BASE = ("recipe=base", "data.text=[text.txt]")
PROPOSED = r"--set (train\.micro_batch_size=(\d+)) needs (\d+\.?\d*) GB$"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(SMALL_TEXT)
    return tmp_path


def gpus(folder: Path, *lines: str, **more: str) -> dict[str, str]:
    """Return an environment in which nvidia-smi lists these GPUs."""
    return {**program(folder, "nvidia-smi", "\n".join(f"echo '{line}'" for line in lines)), **more}


def shortages(made: Plan) -> list[str]:
    """Return the warnings of a plan about memory."""
    return [warning for warning in made.warnings if "memory" in warning]


def plan(environ: dict[str, str], *sets: str, kind: str = "pretrain", **flags: Any) -> Plan:
    given = {key: Flag(value, f"--{key}") for key, value in flags.items()}
    return make_plan(resolve_spec(kind, sets=[*sets], flags=given, environ=environ), home=Path("home").absolute())


def text(made: Plan) -> str:
    return " ".join(made.summary().split())


@pytest.mark.parametrize(
    ("lines", "more", "found"),
    [
        ((A100, A100), {}, (2, "NVIDIA A100-SXM4-40GB", 40960)),
        ((A100, T4), {}, (2, "Tesla T4", 15360)),
        ((A100, T4), {"CUDA_VISIBLE_DEVICES": "0"}, (1, "NVIDIA A100-SXM4-40GB", 40960)),
        ((A100, T4), {"CUDA_VISIBLE_DEVICES": "GPU-5f3c"}, (1, "Tesla T4", 15360)),
        (("NVIDIA GB10, [N/A]",), {}, (1, "NVIDIA GB10", None)),
        ((A100,), {"CUDA_VISIBLE_DEVICES": "MIG-3b1c8a0e"}, (1, "NVIDIA A100-SXM4-40GB MIG", None)),
    ],
)
def test_local_gpus_are_found_by_name_and_memory(
    folder: Path, lines: tuple[str, ...], more: dict[str, str], found: tuple[int, str, int | None]
) -> None:
    compute = plan(gpus(folder, *lines, **more), *BASE).compute
    memory = compute.memory_bytes and compute.memory_bytes // 2**20
    assert (compute.world_size, compute.gpu, memory) == found


def test_local_gpus_give_time_and_memory(folder: Path) -> None:
    summary = text(plan(gpus(folder, A100), *BASE))
    assert re.search(r"time [\d.]+ \w+ to [\d.]+ \w+ \(rates published for the A100\)", summary)
    assert re.search(r"memory [\d.]+ GB of 42\.9 GB per process: ", summary)
    other = text(plan(gpus(folder, "NVIDIA GeForce RTX 4090, 24564 MiB"), *BASE))
    assert re.search(r"time .* \(19% to 45% of the data sheet, as published for the A100\)", other)
    assert " time " not in text(plan(gpus(folder, "NVIDIA GeForce GTX 1080, 8192 MiB"), *BASE))
    assert " time " not in text(plan(gpus(folder, A100, CUDA_VISIBLE_DEVICES="MIG-3b1c8a0e"), *BASE))


def test_too_large_micro_batch_warns_with_largest_that_fits(folder: Path) -> None:
    environ = gpus(folder, T4)
    much = (*BASE, "train.global_batch_size=3000", "train.micro_batch_size=1000")
    (warning,) = shortages(plan(environ, *much))
    assert re.match(r"memory may run out: a process needs [\d.]+ GB, its Tesla T4 has 16\.1 GB: --set ", warning)
    proposed, size, need = re.search(PROPOSED, warning).groups()  # type: ignore[union-attr]
    fits = plan(environ, *much, proposed)
    assert shortages(fits) == []
    assert fits.accumulation_steps == 3000 // int(size)  # type: ignore[attr-defined]
    assert fits.estimates.process_bytes / 1e9 == pytest.approx(float(need), rel=0.01)  # type: ignore[attr-defined]
    larger = min(count for count in range(int(size) + 1, 3000) if 3000 % count == 0)
    assert shortages(plan(environ, *much, f"train.micro_batch_size={larger}"))


def test_fixed_micro_batch_recipe_gets_no_proposal(folder: Path) -> None:
    environ = gpus(folder, T4)
    whole = ("train.global_batch_size=4096", "train.loss_normalization=micro_batch", "train.micro_batch_size=2048")
    (warning,) = shortages(plan(environ, *BASE, *whole))
    assert re.search(r": one sequence at a time needs \d\.\d+ GB$", warning)
    auto = (*BASE, "train.micro_batch_size=auto")
    assert shortages(plan(environ, *auto)) == []
    (warning,) = shortages(plan(gpus(folder, "Tesla T4, 1024 MiB", "Tesla T4, 1024 MiB"), *auto))
    assert re.search(r"needs (\d\.\d+) GB, .* needs \1 GB, with optimizer\.sharded=true less$", warning)


@pytest.mark.parametrize(
    ("environ", "sets", "micro", "shown"),
    [
        ((), (), 32, "256 = 32 x 8 x 1 (global = micro x accumulation x world); micro is the default on CPUs"),
        ((A100,), (), "auto", "micro is auto, the default on GPUs: the largest that fits, found before the first step"),
        (
            (A100,),
            ("train.loss_normalization=micro_batch",),
            32,
            "world); micro is the default with loss_normalization=micro_batch",
        ),
        ((A100,), ("train.micro_batch_size=32",), 32, "256 = 32 x 8 x 1 (global = micro x accumulation x world) "),
    ],
    ids=["cpu", "gpu", "means_of_micro_batches", "given"],
)
def test_default_micro_batch_depends_on_device(
    folder: Path, environ: tuple[str, ...], sets: tuple[str, ...], micro: object, shown: str
) -> None:
    made = plan(gpus(folder, *environ) if environ else NO_GPU, *BASE, *sets)
    assert made.job.train.micro_batch_size == micro  # type: ignore[attr-defined]
    assert shown in text(made)


def test_default_micro_batch_decides_memory_of_gpus(folder: Path) -> None:
    """On GPUs up to 32,768 tokens may be in a micro batch: the estimate is that of 256 sequences of 128."""
    found, given = (plan(gpus(folder, A100), *BASE, *more) for more in ((), ("train.micro_batch_size=256",)))
    assert found.estimates == given.estimates  # type: ignore[attr-defined]
    assert "256 at most" in text(found)
    assert "activations of 256 sequences" in text(found)


def test_default_micro_batch_of_finetuning_is_auto_on_gpus(folder: Path) -> None:
    write_bert(folder / "bert", architectures=["BertModel"])
    (folder / "rows.tsv").write_text("text\tlabel\n" + "w1 w2\tyes\nw3\tno\n" * 30)
    own = ("init_from=bert", "task=own", "data.train=rows.tsv", "data.validation=rows.tsv", "data.max_length=64")
    here, there = (plan(environ, *own, kind="finetune") for environ in (NO_GPU, gpus(folder, T4)))
    assert here.job.train.micro_batch_size == 32  # type: ignore[attr-defined]
    assert "micro is the default on CPUs" in text(here)
    assert there.job.train.micro_batch_size == "auto"  # type: ignore[attr-defined]
    assert "micro is auto, the default on GPUs" in text(there)


def test_cpu_memory_is_shared_among_processes(folder: Path) -> None:
    one, two = (plan(NO_GPU, *BASE, f"compute.processes_per_node={count}").compute.memory_bytes for count in (1, 2))
    nodes = plan(NO_GPU, *BASE, "compute.nodes=2").compute.memory_bytes
    assert one is not None
    assert two == nodes == one // 2
    much = ("train.global_batch_size=1000000", "train.micro_batch_size=1000000")
    (warning,) = shortages(plan(NO_GPU, *BASE, *much))
    assert "its share of the machine has " in warning
    assert re.search(PROPOSED, warning)


def test_azure_machines_are_found_by_size() -> None:
    cloud = ("backend=azure", "compute.cluster=gpus", "azure.preflight=false")
    one = plan(
        {},
        *BASE,
        *cloud,
        "compute.sku=Standard_NC64as_T4_v3",
        *("train.global_batch_size=2048", "train.micro_batch_size=512"),
    )
    assert (one.compute.gpu, one.compute.memory_bytes, one.world_size) == ("T4", 16 * 10**9, 4)
    assert any("its T4 has 16 GB: --set train.micro_batch_size=" in warning for warning in one.warnings)
    cpu = plan({}, *BASE, *cloud, "compute.sku=Standard_D16s_v5", "compute.processes_per_node=4").compute
    assert (cpu.gpu, cpu.memory_bytes) == (None, 16 * 10**9)


def test_finetuning_and_prediction_warn_too(folder: Path) -> None:
    large = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    write_bert(folder / "bert", architectures=["BertModel"], **large)
    (folder / "rows.tsv").write_text("text\tlabel\n" + "w1 w2\tyes\nw3\tno\n" * 300)
    own = ("init_from=bert", "task=own", "data.train=rows.tsv", "data.validation=rows.tsv", "data.max_length=64")
    columns = ("data.text=text", "data.label=label")
    environ = gpus(folder, "Tesla T4, 7000 MiB")
    many = ("train.global_batch_size=512", "train.micro_batch_size=512")
    (warning,) = shortages(plan(environ, *own, *columns, *many, kind="finetune"))
    proposed = re.search(PROPOSED, warning)
    assert proposed
    assert shortages(plan(environ, *own, *columns, *many, proposed[1], kind="finetune")) == []
    more = f"train.micro_batch_size={2 * int(proposed[2])}"
    assert shortages(plan(environ, *own, *columns, *many, more, kind="finetune"))
    small = gpus(folder, "Tesla T4, 500 MiB")
    (warning,) = shortages(plan(small, kind="predict", model="bert", input=["rows.tsv"]))
    assert warning.endswith("its Tesla T4 has 524 MB: --set batching.batch_tokens=N lessens that")


@pytest.mark.parametrize(("at_once", "sharing"), [(1, 1), (4, 4)])
def test_trials_sharing_a_gpu_share_its_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, sharing: int
) -> None:
    document = {
        "space": {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}},
        "trial": {"recipe": "base", "data": {"text": ["text.txt"]}, "train": {"micro_batch_size": 64}},
        "limits": {"trials": 4, "concurrent": 4},
        "trials_per_gpu": at_once,
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    environ = gpus(folder, T4, CUDA_VISIBLE_DEVICES="0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    sweep = resolve_sweep(file=Path("sweep.yaml"), context=SpecContext(environ=environ))
    record, made = plan_sweep(sweep, folder / "home")
    assert made.compute.memory_bytes == 15360 * 2**20 // sharing
    assert any("memory" in warning for warning in record.warnings) == (sharing > 1)
