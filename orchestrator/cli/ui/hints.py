"""Suggestions for a wrong command line: other tools' words for our verbs and flags, and similar names."""

from __future__ import annotations

import argparse
import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.support.errors import UsageError
from train_jobs.config.errors import closest, in_shell
from train_jobs.config.other_tools import OURS, our_key

MAX_WORDS = 5  # of a command line in a message: a shell writes out a pattern as thousands of files
VERBS = {
    "compare": "diff",
    "delete": "prune",
    "describe": "status",
    "eval": "submit evaluate",
    "evaluate": "submit evaluate",
    "fine-tune": "submit finetune",
    "finetune": "submit finetune",
    "follow": "attach",
    "info": "status",
    "kill": "cancel",
    "log": "logs",
    "ls": "list",
    "predict": "submit predict",
    "prepare": "submit prepare",
    "pretrain": "submit pretrain",
    "ps": "list",
    "restart": "resume",
    "rm": "prune",
    "run": "submit",
    "runs": "list",
    "show": "status",
    "start": "submit",
    "stop": "cancel",
    "tail": "logs",
    "train": "submit pretrain",
    "tune": "submit sweep",
}
"""Verbs of other tools -> ours."""
FLAGS = {
    "--dataset": "--data",
    "--gpus": "--processes",
    "--init-from": "--model",
    "--model-name-or-path": "--model",
    "--text-column": "--column text=NAME",
    "--label-column": "--column label=NAME",
    "--train-file": "--data",
}
"""Flags of other tools -> ours, except those that are keys here (train_jobs/config/other_tools.py)."""
SIMILAR = 0.85  # of a misspelled flag: --epochs is no --eps, and a wrong suggestion is worse than none
_CHOICE = re.compile(r"argument (?P<what>[A-Z]+): invalid choice: '(?P<word>[^']*)' \(choose from (?P<known>.*)\)")


def usage_error(message: str, prog: str) -> UsageError:
    """Return the error for a message of argparse.

    Args:
        message: the message.
        prog: the command, such as `orchestrator data`.
    """
    match = _CHOICE.fullmatch(message)
    if match is None:
        return UsageError(message, fix=f"{prog} --help")
    word, known = match["word"], [name.strip("' ") for name in match["known"].split(",")]
    meant = (VERBS.get(word) if match["what"] == "VERB" else None) or closest(word, known)
    what = f"unknown {match['what'].lower()} {word!r}"
    if meant is None:
        return UsageError(what, facts={"known": ", ".join(known)}, fix=f"{prog} --help")
    return UsageError(f'{what} (did you mean "{meant}"?)', fix=f"{prog} {meant}")


def unknown_arguments(verb: str, unknown: Sequence[str], given: Sequence[str], known: Iterable[str]) -> UsageError:
    """Return the error for arguments that a verb does not have.

    Args:
        verb: the verb.
        unknown: the arguments.
        given: the whole command line.
        known: flags of the verb.
    """
    more = f" and {len(unknown) - MAX_WORDS:,} more" if len(unknown) > MAX_WORDS else ""
    message = f"unknown arguments of {verb}: {' '.join(unknown[:MAX_WORDS])}{more}"
    flag = unknown[0].partition("=")[0]
    if flag.startswith("-"):
        flag = flag.replace("_", "-")
        own = [name for name in known if name != "--help"]  # a verb without --set has no use for a suggestion of it
        others = {theirs: ours for theirs, ours in FLAGS.items() if ours.split()[0] in own}
        keys_of_flags = _keys_of_flags(flag, given) if "--set" in own else {}
        meant_flags = [*own, *others, *keys_of_flags]
        near = flag if flag in meant_flags else closest(flag, meant_flags, SIMILAR)
        if near in keys_of_flags and near not in {*own, *others}:
            key = keys_of_flags[near]
            ours = f"--set {key}=VALUE"
            steps_only = "epoch" in near and key == "train.steps"
            hint = f"pretraining counts steps, not epochs: {ours}" if steps_only else f"did you mean {ours}?"
            return UsageError(f"{message} ({hint})", fix=ours)
        if near is None:
            return UsageError(message, fix=f"orchestrator {verb} --help")
        meant = others.get(near, near)
        return UsageError(f'{message} (did you mean "{meant}"?)', fix=meant)
    before = given[given.index(unknown[0]) - 2 :][:2] if unknown[0] in given[2:] else []
    if before and before[0] in {"--data", "--input"}:
        words = [before[1], *(word for word in unknown if not word.startswith("-"))]
        return UsageError(f"{before[0]} takes one path, and may be repeated", fix=_repeated(before[0], words))
    if before and before[0] == "--set" and "=" not in before[1]:
        return UsageError(
            f"invalid --set {before[1]}: not of the form KEY=VALUE",
            fix=f"--set {in_shell(f'{before[1]}={unknown[0]}')}",
        )
    return UsageError(message, fix=f"orchestrator {verb} --help")


def _repeated(flag: str, paths: Sequence[str]) -> str:
    """Return the arguments for several paths: the pattern of a folder if the shell wrote out all of its files."""
    if flag == "--data" and len(paths) > MAX_WORDS:
        first = Path(paths[0])
        name = f"*{glob.escape(first.suffix)}"
        if set(first.parent.glob(name)) == set(map(Path, paths)):
            return f"{flag} {in_shell(str(Path(glob.escape(str(first.parent)), name)))}"
    more = " ..." if len(paths) > MAX_WORDS else ""
    return " ".join(f"{flag} {in_shell(path)}" for path in paths[:MAX_WORDS]) + more


def _keys_of_flags(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Return the flags that mean a key of the kind of job that is given, and the key.

    A flag is the last part of a single key, or the word of another tool that stands for one. An unknown flag means the
    single key whose last part has all its words.

    Args:
        flag: the unknown flag.
        given: the whole command line.
    """
    from orchestrator.jobs.scaffold import spec_models
    from orchestrator.specs.reference import keys

    models = spec_models()
    chosen = [models[name] for name in given if name in models] or list(models.values())
    plain = [key for model, _ in chosen for key in keys(model) if not key.section and "[]" not in key.name]
    known, by_word = {key.name for key in plain}, dict[str, set[str]]()
    for key in plain:
        by_word.setdefault(key.path[-1], set()).add(key.name)
    single = {word: names.pop() for word, names in by_word.items() if len(names) == 1}
    others = {word: ours for word in OURS if (ours := our_key(word, known.__contains__)) is not None}
    words = {*flag.strip("-").split("-")}
    whole = {key.name for key in plain if words <= {*key.path[-1].split("_")}}
    found = {flag: whole.pop()} if len(whole) == 1 else {}
    return found | {f"--{word.replace('_', '-')}": key for word, key in {**others, **single}.items()}


def flags_of_parser(parser: argparse.ArgumentParser, verb: str) -> list[str]:
    """Return the flags of a verb."""
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found = next(actions).choices.get(verb)
    return [flag for flag in found._option_string_actions if flag.startswith("--")] if found is not None else []
