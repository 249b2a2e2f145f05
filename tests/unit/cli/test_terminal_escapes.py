"""Names and texts from outside are shown on the terminal with their escape sequences, which are not sent."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from orchestrator.runs.status import RunState
from orchestrator.support.html import element
from tests.run_folders import make_run
from tests.unit.cli.conftest import Command
from tests.unit.cli.test_terminal_output import PRICED
from tests.unit.orchestrator.test_compare import full_plan
from train_jobs.config import DataError, in_shell
from train_jobs.config.visible import visible, visible_lines, visible_log, visible_styled

ATTACKS = {
    "colour": "\x1b[31mred",
    "conceal": "\x1b[8mhidden",
    "cursor": "\x1b[2A\x1b[2Jabove",
    "bell": "\a",
    "title": "\x1b]0;title\a",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\a",
    "link": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "device": "\x1bP$q\x1b\\",
    "reset": "\x1bc",
    "C1": "\x9b31m",
    "return": "\rover",
    "backspace": "\b\b\b",
    "delete": "\x7f",
    "override": "txt.\u202egnp.exe",
    "isolate": "\u2066\u2069",
    "mark": "\u200f\u061c",
    "invisible": "\u200b\ufeff\u2060",
    "separator": "\u2028\u2029",
    "undecodable": "\udcff",
}
HOSTILE = "name" + "".join(ATTACKS.values()) + "end"
FORGED = "\n  fix  rm -rf /"
SENT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
OWN_COLOURS = re.compile(r"\x1b\[(?:0|2|3[1236]|1;31)m")


def unsafe(text: str) -> list[str]:
    """Return the unsafe characters of an output, except our own colours."""
    return SENT.findall(OWN_COLOURS.sub("", text))


@pytest.mark.parametrize("name", ATTACKS)
def test_visible_escapes_and_keeps_the_rest(name: str) -> None:
    text = f"a b/ü{ATTACKS[name]}漢\u200d字"
    for function in (visible, visible_lines):
        shown = function(text)
        assert unsafe(shown) == []
        assert "\x1b" not in shown
        assert shown.startswith("a b/ü")
        assert shown.endswith("漢\u200d字")
        assert function("plain") == "plain"


def test_name_stays_on_one_line() -> None:
    assert visible("a\nb\tc\r") == "a\\nb\\tc\\r"
    assert visible_lines("a\nb\tc") == "a\nb\tc"


def test_log_keeps_colours_alone() -> None:
    assert visible_log("\x1b[1;31mred\x1b[0m \x1b[38;5;208mx") == "\x1b[1;31mred\x1b[0m \x1b[38;5;208mx\x1b[0m"
    assert visible_log("10%\r100%\r") == "10%\n100%"
    assert visible_styled("\x1b[8ma\x1b[1;8mb\x1b[38;5;8mc") == "\\x1b[8ma\\x1b[1;8mb\x1b[38;5;8mc"
    assert unsafe(visible_log(HOSTILE)) == []


def test_error_shows_names_and_keeps_its_form() -> None:
    error = DataError(f"cannot read {HOSTILE}{FORGED}", facts={"where": FORGED}, fix="x", problems=[HOSTILE + FORGED])
    assert unsafe(str(error)) == []
    assert [line for line in str(error).splitlines() if line.startswith("  fix")] == ["  fix    x"]


def test_fix_with_hostile_name_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "a'b\\c\x1b[31m\n\u202e\udcff.txt"
    path.write_text("text")
    shown = in_shell(path)
    assert unsafe(shown) == []
    done = subprocess.run(["bash", "-c", f"LC_ALL=C.UTF-8 cat -- {shown}"], capture_output=True, text=True, check=False)
    assert done.stdout == "text", done.stderr
    assert in_shell("a b") == shlex.quote("a b")


def test_commands_send_no_escapes_of_a_run(home: Path, on_terminal: Command) -> None:
    hostile = HOSTILE.replace("\udcff", "") + FORGED  # a state is UTF-8
    plan = full_plan(spec={"data": {"text": [hostile]}, "tags": {}}, compute=PRICED, changes={}, world_size=2)
    make_run(home, "one", RunState.FAILED, plan=plan, reason=f"rank 0 failed: {hostile}", warning=hostile)
    make_run(home, "two", RunState.FAILED, plan=full_plan(compute=PRICED, changes={}, world_size=2))
    for command in ("list", "status one", "diff one two", "cost --all", "prune --keep-last 1 --dry-run"):
        found = on_terminal(*command.split())
        assert unsafe(found.out) == [], command
    status = on_terminal("status", "one").out
    assert "\\x1b]52;c;" in status
    assert "\n  fix" not in status


@pytest.mark.parametrize("ranks", [1, 2])
def test_logs_on_terminal_keep_colours_alone(
    home: Path, on_terminal: Command, orchestrator: Command, ranks: int
) -> None:
    run = make_run(home, "one", processes_per_node=ranks)
    text = HOSTILE.replace("\udcff", "")
    for rank in range(ranks):
        (run.logs / f"rank-{rank}.log").write_text(f"\x1b[32mgreen {text}\nstep 1 {text}\nover\n", newline="")
    words = ["logs", "one", *(["--all-ranks"] if ranks > 1 else [])]
    shown = on_terminal(*words).out
    assert unsafe(shown.replace("\r\x1b[K", "")) == []
    assert "\x1b[32mgreen name\x1b[31mred\\x1b[8mhidden" in shown
    assert text in orchestrator(*words).out  # a pipe gets every byte


@pytest.mark.parametrize("words", ["status {}", "submit pretrain --data {}", "submit pretrain -f {}.yaml", "{}"])
def test_error_about_argument_sends_no_escapes(on_terminal: Command, words: str) -> None:
    found = on_terminal(*(word.format(HOSTILE + FORGED) for word in words.split()))
    assert found.code != 0
    assert unsafe(found.out) == []
    assert "\n  fix  rm" not in found.out
    assert "\\x1b" in found.out


def test_html_has_no_directional_marks() -> None:
    page = element("p", HOSTILE, title=HOSTILE)
    assert unsafe(page) == []
    assert "txt.\\u202egnp.exe" in page
