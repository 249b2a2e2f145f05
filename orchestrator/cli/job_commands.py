"""Declarations of the commands that start a run: set up, check, plan, submit."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import OUTPUT, Command, argument, switch
from orchestrator.cli.ui.spec_flags import BACKEND, HELP, KIND, SPEC_FLAGS
from orchestrator.cli.ui.spec_flags import OUTPUT as JOB_OUTPUT

SHELLS = ("bash", "zsh", "fish")
JOB = (HELP, KIND, BACKEND, *SPEC_FLAGS, JOB_OUTPUT)

START = (
    Command(
        "submit",
        "start a job and follow it",
        "Start a job and follow it. Ctrl-C stops following, never the job. submit KIND --help lists the flags of one"
        " kind of job.",
        [
            "submit pretrain --data notes/ --set train.steps=2000",
            "submit finetune --task MRPC --data glue_data --model @last",
            "submit finetune --task reviews.yaml --model bert-base-uncased",
            "submit evaluate --model @last --data held-out.csv",
            "submit predict --model @last --input new.csv --output out.jsonl",
            "submit command -- python train.py --epochs 3",
        ],
        "submit.submit",
        [
            *JOB,
            switch("--dry-run", "--dryrun", help_text="print the plan and the request without submitting"),
            switch("-d", "--detach", help_text="return once the run has started"),
            switch("--new", help_text="start another run even if one with the same hash exists"),
        ],
    ),
    Command(
        "plan",
        "show what submit would do",
        "Show what submit would do: the plan, and the exact request that would be sent.",
        ["plan pretrain -f job.yaml"],
        "submit.plan",
        [*JOB, switch("--new", help_text="plan another run even if one with the same hash exists")],
    ),
    Command(
        "validate",
        "check a spec",
        "Check a spec. Reports all problems together, with file and line.",
        ["validate pretrain -f job.yaml"],
        "submit.validate",
        JOB,
    ),
    Command(
        "home",
        "share the home folder with a group",
        "Share the home folder with a group, or close it again. A home folder is private unless it is shared: 0700, its"
        " files 0600, whatever the umask.",
        ["home share --group bert-team"],
        actions=[
            Command(
                "share",
                "give a group full access",
                "Give a group full access to the home folder: its members can read, change and run everything in it,"
                " also what is created later. Members set ORCHESTRATOR_HOME to this folder.",
                ["home share --group bert-team"],
                "setup.share",
                [argument("--group", required=True, metavar="NAME", help="a group of which you are a member"), OUTPUT],
            ),
            Command(
                "unshare",
                "close the home folder to all other users",
                "Close the home folder, with everything in it, to all other users.",
                ["home unshare"],
                "setup.unshare",
                [OUTPUT],
            ),
        ],
    ),
    Command(
        "init",
        "create a project",
        "Create the commented files of a project: a job, the project's defaults, and the ignore list of files that are"
        " not packaged with the code.",
        ["init my-bert", "init --full --template finetune --recipe squad"],
        "setup.init",
        [
            argument(
                "folder",
                metavar="DIR",
                nargs="?",
                type=Path,
                default=Path(),
                help="project folder (default: current folder)",
            ),
            argument("--template", metavar="KIND", default="pretrain", help="kind of job (default: pretrain)"),
            switch("--full", help_text="write every key, with its help text"),
            argument("--recipe", metavar="NAME", help="with --full: recipe that provides the values"),
            switch("--force", help_text="overwrite existing files"),
            OUTPUT,
        ],
    ),
    Command(
        "explain",
        "explain a key of a spec",
        "Show the type, default and help text of a key, and the recipes that change it. For a section, show all of its"
        " keys.",
        ["explain train.micro_batch_size"],
        "setup.explain",
        [
            argument(
                "key",
                completer=completers.explained_keys,
                metavar="KEY",
                help="dotted key, as in --set",
            ),
            argument("--kind", metavar="KIND", help="kind of job (default: every kind that has the key)"),
            OUTPUT,
        ],
    ),
    Command(
        "doctor",
        "find problems that prevent runs",
        "Check Python, packages, devices, disks, locks, ports and the tracking store, and print a fix for each problem;"
        " for Azure also check sign-in, workspace, datastore and quota. With --gpu, check what training on this"
        " machine's GPUs needs, from the driver to a compiled step. The exit code is 1 if a check fails, 8 if"
        " one of --gpu does.",
        ["doctor -b azure", "doctor --gpu"],
        "setup.doctor",
        [
            argument("-b", "--backend", metavar="NAME", help="backend to check (default: the project's)"),
            argument("--gpu", action="store_true", help="also check and measure the GPUs, in about a minute"),
            OUTPUT,
        ],
    ),
    Command(
        "completion",
        "print shell completion code",
        "Print the shell code that completes verbs, flags, runs, recipes and keys. For every shell, add the line"
        ' `eval "$(orchestrator completion bash)"` to ~/.bashrc (zsh: ~/.zshrc), or, for fish, write it to'
        " ~/.config/fish/completions/orchestrator.fish.",
        ["completion bash"],
        "setup.completion",
        [argument("shell", choices=SHELLS, help="shell: bash, zsh or fish")],
    ),
)
