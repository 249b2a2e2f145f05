"""Output on a terminal of 80 columns, in colour; in a pipe, complete and without colour."""

from __future__ import annotations

import io
import json
import random
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.cli.ui.terminal import MIN_COLUMN_WIDTH, Terminal, forbid_colours, table, terminal_of
from orchestrator.runs.status import RunState
from orchestrator.sweeps.design.sweep_record import SweepState
from tests.conftest import Console
from tests.run_folders import make_run, report
from tests.unit.cli.conftest import Command
from tests.unit.orchestrator.test_compare import full_plan
from tests.unit.sweeps.test_sweep_table import add, make

COLOUR = re.compile(r"\x1b\[[\d;]*m")
NAMES = tuple(f"pretrain-on-letters-of-the-last-century-with-dates-{number:08x}-12" for number in (0xABCDEF01, 7))
SETTING = "optimizer.a_learning_rate_with_a_name_of_quite_some_length"
PRICED = {"nodes": 1, "processes_per_node": 2, "price_per_hour": 123.456}


def without_colour(text: str) -> str:
    return COLOUR.sub("", text)


@pytest.fixture
def long_names(home: Path) -> None:
    """Create two runs and a sweep with the longest names, settings and values."""
    for age, name in enumerate(NAMES):
        spec = {"train": {"steps": 100 + age}, "data": {"text": [f"/home/someone/{'texts/' * 20}{age}.txt"]}}
        attempt = [{"started": 0.0, "ended": 360_000.0}]
        plan = full_plan(spec=spec, compute=PRICED, changes={}, world_size=2)
        run = make_run(home, name, RunState.FAILED, age=age, plan=plan, attempts=attempt, started=0.0, ended=360_000.0)
        report(run, 100, validation_mlm_loss=5.123456789012, validation_a_metric_with_a_very_long_name_indeed=1e-17)
    found = make(home, name=f"search-{'wide-' * 9}0123abcd", space={SETTING: {"low": 1e-6, "high": 1e-2, "log": True}})
    for outcome in (3.0, 2.0):
        add(found, [outcome + 1, outcome], "completed", outcome, settings={SETTING: 0.000123456 * outcome})
    found.folder.write_state(SweepState(state=RunState.COMPLETED))


COMMANDS = {
    "list": NAMES,
    "cost --all": NAMES,
    f"diff {NAMES[0]} {NAMES[1]}": (*NAMES, "/home/someone/"),
    "prune --keep-last 1 --dry-run": NAMES[1:],
    "sweep list": ("search-wide-wide-wide-wide-wide-wide-wide-wide-wide-0123abcd",),
    "sweep show search": (f"{SETTING.rpartition('.')[2]}=0.000370368",),
    "skus": ("Standard_ND96isr_H100_v5",),
    "skus --gpus A100:8": ("Standard_ND96amsr_A100_v4",),
}


@pytest.mark.usefixtures("long_names")
@pytest.mark.parametrize("command", COMMANDS)
def test_table_fits_terminal_complete_in_pipe(command: str, orchestrator: Command, on_terminal: Command) -> None:
    shown, piped = on_terminal(*command.split()), orchestrator(*command.split())
    assert (shown.code, piped.code) == (0, 0), piped.err
    assert max(map(len, without_colour(shown.out).splitlines())) <= 80
    for whole in COMMANDS[command]:
        assert whole in piped.out + piped.err
    assert "\x1b" not in piped.out + piped.err


def test_widest_columns_shrink_first() -> None:
    draw = random.Random(0)
    for _ in range(200):
        columns = draw.randint(1, 6)
        rows = [["x" * draw.randint(1, 120) for _ in range(columns)] for _ in range(4)]
        lines = table(rows, ["H"] * columns, Terminal(80)).splitlines()
        assert max(map(len, lines)) <= 80
        assert all(
            cell in line
            for row, line in zip(rows, lines[1:], strict=True)
            for cell in row
            if len(cell) <= MIN_COLUMN_WIDTH
        )
        assert table(rows, ["H"] * columns, Terminal()).splitlines()[1].split() == [cell for cell in rows[0] if cell]


def test_states_have_colour_unless_disabled(home: Path, on_terminal: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(home, "bad", RunState.FAILED, plan=full_plan())
    make_run(home, "good", plan=full_plan(), age=5)
    shown = on_terminal("list").out
    assert "\x1b[1;31mfailed" in shown
    assert "\x1b[32mcompleted" in shown
    assert "\x1b[1;31mfailed\x1b[0m" in on_terminal("status", "bad").out
    refused = on_terminal("status", "xyz")
    assert refused.out.startswith("\x1b[1;31merror[not-found]:\x1b[0m unknown run 'xyz'\n")
    plainly = without_colour(shown)
    for words in (("list", "--no-color"), ("--no-color", "list")):
        assert on_terminal(*words).out == plainly
    assert "\x1b" not in on_terminal("list", "-o", "json").out
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert on_terminal("list").out == plainly
    assert on_terminal("list").out == shown, "--no-color applies to one command"


def test_forced_colour_in_pipe_never_in_document(
    home: Path, orchestrator: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(home, "bad", RunState.FAILED, plan=full_plan())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31mfailed" in orchestrator("list").out
    assert json.loads(orchestrator("list", "-o", "json").out)[0]["state"] == "failed"
    assert "\x1b" not in orchestrator("list", "--no-color").out


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
    ],
)
def test_disabling_colour_overrides_forcing_it(environ: Mapping[str, str], coloured: bool) -> None:
    forbid_colours(False)
    assert terminal_of(io.StringIO(), environ) == Terminal(None, coloured)


def test_doctor_finding_has_coloured_level(on_terminal: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.support.finding import fail, ok, warn

    found = [ok("a", "fine"), warn("b", "hm", "do"), fail("c", "no", "do")]
    monkeypatch.setattr("orchestrator.doctor.examine", lambda **_: iter(found))
    shown = on_terminal("doctor").out
    assert [line.split()[:2] for line in shown.splitlines() if "fix" not in line] == [
        ["\x1b[32mok", "\x1b[0m"],
        ["\x1b[33mwarn\x1b[0m", "b"],
        ["\x1b[1;31mfail\x1b[0m", "c"],
    ]


def in_shell(console: Console, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash; `orchestrator` is the command."""
    command = shlex.join([*console.program, "-m", "orchestrator.cli.main"])
    return subprocess.run(
        ["bash", "-c", f'orchestrator() {{ {command} "$@"; }}; {script}'],
        cwd=console.cwd,
        env=console.environ(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_stream_that_the_caller_closed_is_no_error(console: Console, closed: str) -> None:
    listed, unknown = (in_shell(console, f"orchestrator {words} {closed}") for words in ("list", "status nothing"))
    assert (listed.returncode, unknown.returncode) == (0, 5), listed.stderr + unknown.stderr
    assert ("unknown run" in unknown.stderr) is ("2>" not in closed)


@pytest.mark.parametrize("words", ["plan pretrain", "init pretrain", "download run", "download run --to here"])
def test_folder_that_no_longer_exists_is_named(console: Console, words: str) -> None:
    (make_run(console.home, "run").outputs / "model").mkdir()
    done = in_shell(console, f"mkdir gone; cd gone; rmdir ../gone; orchestrator {words}")
    assert done.returncode == 2
    assert done.stderr == "error[usage]: the current folder no longer exists\n  fix  cd to a folder that exists\n"


@pytest.mark.parametrize("words", ["list -o json", "doctor"])
def test_output_that_cannot_be_written_is_no_bug(console: Console, words: str) -> None:
    done = in_shell(console, f"orchestrator {words} > /dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "error[storage]: cannot write the standard output\n"
        "  reason  No space left on device\n"
        "  fix     free some space, or write to another place\n",
    )


@pytest.mark.parametrize("flags", ["--data", "--data corpus.txt --from", "-f"])
def test_text_in_place_of_a_path_is_a_mistake_of_usage(console: Console, flags: str) -> None:
    (console.cwd / "corpus.txt").write_text("A text.\n")
    done = in_shell(console, f"orchestrator submit pretrain --dry-run -o json {flags} '{'a long text ' * 40}'")
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (2, "usage"), done.stderr
    assert "is too long for a file" in done.stderr
