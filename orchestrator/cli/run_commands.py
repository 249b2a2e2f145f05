"""Declarations of the commands that watch and manage existing runs and sweeps."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import (
    BACKEND,
    ENDED,
    OUTPUT,
    YES,
    Argument,
    Command,
    OneOf,
    above_zero,
    argument,
    moment,
    not_negative,
    percent,
    positive,
    run,
    run_or_sweep,
    seconds,
    sentence,
    states,
    switch,
)

OUTPUTS = ("model", "checkpoints", "logs", "metrics", "result", "plan", "spec", "code")
SWEEP = argument("name", completer=completers.sweeps, metavar="SWEEP", help="name, unique prefix of a name, or @last")
MODEL = argument("name", completer=completers.runs, metavar="RUN|FOLDER", help="run, or folder of a model")
ENDPOINT = argument("endpoint", metavar="ENDPOINT", help="name of the endpoint")
DETACH = switch("-d", "--detach", help_text="return once the run has started")
MLFLOW = argument("--mlflow", metavar="URI", help="an MLflow server, or the path of an SQLite file")
PNG = argument("--png", type=Path, metavar="FOLDER", help="also write the figures as PNG files")


def _sweep(name: str, summary: str, more: str, example: str, *arguments: Argument) -> Command:
    """Declare an action on one sweep."""
    description = f"{sentence(summary)}{more}"
    return Command(name, summary, description, [f"sweep {example}"], f"sweeps.{name}", [SWEEP, *arguments, OUTPUT])


SWEEPS = (
    Command(
        "list",
        "list sweeps",
        "List sweeps, newest first: state, finished trials, best trial.",
        ["sweep list"],
        "sweeps.list_all",
        [OUTPUT],
    ),
    _sweep(
        "show",
        "show the trials of a sweep",
        ": state, last and best report, settings. The best trial is marked with *.",
        "show @last -w",
        switch("-w", "--watch", help_text="update until the sweep has finished"),
    ),
    _sweep(
        "best",
        "show the best trial of a sweep",
        " among those that completed.",
        "best @last --spec best.yaml",
        argument("--spec", type=Path, metavar="FILE", help="write a spec that reruns the best trial"),
    ),
    _sweep(
        "report",
        "write an HTML report of a sweep",
        ": its figures and all of its trials. The same as orchestrator report SWEEP.",
        "report @last --to report.html",
        argument("--to", type=Path, metavar="FILE", help="HTML file (default: report.html in the sweep's folder)"),
        PNG,
    ),
    _sweep(
        "extend",
        "add trials to a sweep, or raise its limits",
        ". Existing trials are kept.",
        "extend @last --trials 20 --hours 24",
        argument("--trials", type=positive, metavar="N", help="number of trials to add"),
        argument("--hours", type=above_zero, metavar="N", help="new limits.hours, counted from the submission"),
        argument("--cost", type=above_zero, metavar="N", help="new limits.cost of all trials, in USD"),
        DETACH,
    ),
    _sweep(
        "retry",
        "run failed trials of a sweep again",
        ", each from its last checkpoint. A completed sweep continues with them.",
        "retry @last 3 7",
        argument(
            "trials",
            nargs="*",
            type=not_negative,
            completer=completers.failed_trials,
            metavar="TRIAL",
            help="number of a failed trial (default: all that failed)",
        ),
        DETACH,
    ),
)

WATCH = (
    Command(
        "list",
        "list runs",
        "List runs, newest first. A sweep takes one line, with its best score; --state, --trials and -o json also list"
        " the runs of its trials. With --mlflow, also the runs of colleagues and other tools, with score and data.",
        ["list --state running --limit 10", "list --trials", "list --mlflow http://mlflow:5000 --experiment reviews"],
        "show.list_runs",
        [
            states("--state", "--status"),
            argument(
                "--limit",
                type=positive,
                metavar="N",
                help="maximum number of rows (default: 200; with --mlflow or -o json: all)",
            ),
            switch("--trials", "--all", help_text="list the runs of sweeps, not the sweeps"),
            MLFLOW,
            argument("--experiment", metavar="NAME", help="with --mlflow: only runs of this experiment"),
            BACKEND,
            OUTPUT,
        ],
    ),
    Command(
        "status",
        "show the status of a run",
        "Show the status of a run, and the reason if it did not complete.",
        ["status @last --watch"],
        "show.status",
        [
            *run(),
            switch("--lineage", help_text="show the run's lineage, and which links still verify"),
            switch("-w", "--watch", help_text="update until the run has finished; Ctrl-C does not affect the job"),
            OUTPUT,
        ],
    ),
    Command(
        "logs",
        "show the logs of a run",
        "Show the log of one rank, of all ranks, or of the launcher, for a run in any state. Lines of several logs are"
        " merged by time, to the second, and have a [node:rank] prefix.",
        [
            "logs RUN -f                           until the run has finished",
            "logs RUN --all-ranks --tail 5         the end of each log",
            "logs RUN --grep '(?i)error|nan'       ignore case",
            "logs RUN --node 1 --since 2026-11-21T10:00",
            "logs RUN --launcher                   log of the launcher",
        ],
        "run_files.logs",
        [
            *run(),
            switch("-f", "--follow", help_text="follow until the run has finished; Ctrl-C does not affect the job"),
            OneOf(
                (
                    argument(
                        "--rank",
                        type=int,
                        action="append",
                        default=[],
                        metavar="N",
                        help="only this rank; may be repeated (default: 0)",
                    ),
                    switch("--all-ranks", help_text="all ranks"),
                )
            ),
            argument("--node", type=int, metavar="N", help="only ranks on this node"),
            switch("--launcher", help_text="log of the processes that start and watch the ranks"),
            argument("--tail", type=not_negative, metavar="N", help="only the last N lines of each log"),
            argument(
                "--since",
                type=moment,
                metavar="T",
                help="only lines written after this time: 90s, 10m, 2h or 1d ago, or an ISO 8601 time",
            ),
            argument("--grep", metavar="RE", help="only lines that match this regular expression"),
            OUTPUT,
        ],
    ),
    Command(
        "attach",
        "follow a run or a sweep",
        "Follow a run or a sweep, like submit. Ctrl-C does not affect the job.",
        ["attach @last"],
        "lifecycle.attach",
        [*run_or_sweep(), OUTPUT],
    ),
    Command(
        "wait",
        "wait until a run or a sweep has finished",
        "Wait until a run or a sweep has finished. The exit code is the job's; for a sweep 0 if it completed.",
        ["wait @last --timeout 2h"],
        "lifecycle.wait",
        [
            *run_or_sweep(),
            argument("--timeout", type=seconds, metavar="T", help="maximum wait: 30 (seconds), 90s, 10m, 2h, 1d"),
            OUTPUT,
        ],
    ),
    Command(
        "report",
        "write an HTML report of runs or of a sweep",
        "Write one self-contained HTML page. For a run: curves, scores, and the plan compared with the result. For"
        " several runs: their curves on the same axes and their differences. For a sweep: its trials. Runs and sweeps"
        " may be unfinished.",
        [
            "report @last --png figures",
            "report pretrain-tiny-4e919d08 @last --to both.html",
            "report search-1f3a77c2",
        ],
        "show.report",
        [
            *run_or_sweep(count="+"),
            argument(
                "--to",
                type=Path,
                metavar="FILE",
                help="HTML file (default: report.html in the folder of the run or sweep; for several runs"
                " comparison.html in the current folder)",
            ),
            PNG,
            OUTPUT,
        ],
    ),
    Command(
        "diff",
        "show the differences between two runs",
        "Show the differences between two runs: spec, compute, packages, text, code and results. Scores on the same"
        " rows are tested for significance. With --mlflow, runs that are unknown here are looked up in MLflow by id or"
        " name, and what both runs have is compared.",
        ["diff @last pretrain-tiny-4e919d08 --code", "diff @last their-run --mlflow http://mlflow:5000"],
        "show.diff",
        [*run(count=2), switch("--code", help_text="also show the changed lines of code"), MLFLOW, OUTPUT],
    ),
    Command(
        "cost",
        "show machine hours and cost of runs",
        "Show the machine hours and cost of runs over all attempts, and the work that restarts repeated.",
        ["cost --all"],
        "show.cost",
        [*run(count="*"), switch("--all", help_text="all runs"), OUTPUT],
    ),
    Command(
        "debug",
        "show each rank's Python stacks",
        "Show the Python stacks of all threads of each rank of a live run, innermost frame first, without stopping the"
        " run.",
        ["debug @last --rank 1"],
        "show.stacks",
        [*run(), argument("--rank", type=int, metavar="N", help="only this rank"), OUTPUT],
    ),
    Command(
        "sweep",
        "show, extend and retry sweeps",
        "Show, extend and retry sweeps. orchestrator submit sweep starts one; resume and cancel accept its name too.",
        ["sweep show @last -w"],
        actions=SWEEPS,
    ),
)

MANAGE = (
    Command(
        "cancel",
        "cancel runs and sweeps",
        "Cancel runs and sweeps. Each run and each running trial saves a checkpoint first, so that it can be resumed.",
        ["cancel @last"],
        "lifecycle.cancel",
        [
            *run_or_sweep(count="+"),
            switch("--no-wait", help_text="return before the runs have finished"),
            OUTPUT,
        ],
    ),
    Command(
        "resume",
        "resume a run or a sweep",
        "Resume from the newest checkpoint. With another number of processes the global batch, the order of examples"
        " and the schedule stay the same, but the result is not bit-exact. A sweep resumes its remaining trials.",
        ["resume @last --processes 6"],
        "lifecycle.resume",
        [
            *run_or_sweep(),
            argument("--processes", type=int, metavar="N", help="processes on each node (default: unchanged)"),
            DETACH,
            OUTPUT,
        ],
    ),
    Command(
        "preempt",
        "simulate a preemption",
        "Simulate a preemption: the job saves a checkpoint and stops. It restarts if it was submitted with"
        " --max-restarts or --max-preemptions.",
        ["preempt @last"],
        "lifecycle.preempt",
        [*run(), OUTPUT],
    ),
    Command(
        "supervise",
        "restart a run when it fails or is preempted",
        "Watch a run on Azure, and resubmit it when it is preempted (at most --max-preemptions times) or fails (at most"
        " --max-restarts times). Commands that follow a run do the same. Runs on this machine have a supervisor.",
        ["supervise azure://WORKSPACE/RUN"],
        "lifecycle.supervise",
        [
            *run(),
            argument(
                "--max-restarts",
                type=not_negative,
                metavar="N",
                help="maximum restarts after errors (default: as submitted)",
            ),
            argument(
                "--max-preemptions",
                type=not_negative,
                metavar="N",
                help="maximum restarts after evictions (default: as submitted)",
            ),
            OUTPUT,
        ],
    ),
    Command(
        "download",
        "copy outputs of a run",
        "Copy outputs of a run, or of the best trial of a sweep, and print their paths. Copies all of the named"
        " outputs, or none.",
        ["download @last model checkpoints --to results/"],
        "run_files.download",
        [
            *run_or_sweep(),
            argument(
                "outputs",
                completer=lambda **_: list(OUTPUTS),
                metavar="OUTPUT",
                nargs="*",
                help=f"{', '.join(OUTPUTS)}, ... (default: model)",
            ),
            switch("--all", help_text="all outputs"),
            argument("--to", type=Path, metavar="DIR", help="destination (default: a folder with the run's name)"),
            switch("--force", help_text="overwrite existing files"),
            OUTPUT,
        ],
    ),
    Command(
        "prune",
        "delete old runs",
        "Delete finished runs, oldest first, and leftovers of interrupted commands. A run is deleted only if all given"
        " rules match, and never while it is active. MLflow keeps its record of a deleted run. --purge deletes all"
        " traces of the named runs instead: token stores, MLflow records, registered models and caches too.",
        ["prune --keep-last 10 --older-than 30d --dry-run", "prune --purge notes-0966ffa5 --dry-run"],
        "run_files.prune",
        [
            argument("--keep-last", type=positive, metavar="N", help="keep the N newest finished runs"),
            argument(
                "--older-than", type=seconds, metavar="T", help="only runs that finished before this age: 12h, 30d"
            ),
            states("--state", choices=ENDED),
            switch(
                "--stores",
                help_text="also delete token stores that no remaining run uses, and compiled code; alone: only these",
            ),
            argument(
                "--purge",
                nargs="+",
                completer=completers.runs,
                metavar="RUN",
                help="runs and sweeps to delete with all their traces; lists what remains elsewhere",
            ),
            switch("--dry-run", "--dryrun", help_text="show what would be deleted without deleting it"),
            YES,
            BACKEND,
            OUTPUT,
        ],
    ),
    Command(
        "mlflow",
        "copy runs to MLflow again",
        "Copy runs to MLflow again. metrics.jsonl has all metrics of a run; MLflow has a copy.",
        ["mlflow sync --all"],
        actions=[
            Command(
                "sync",
                "copy runs and sweeps to MLflow",
                "Copy to MLflow what it lacks of runs and sweeps: parameters, tags, metrics, status and end. Each value"
                " is copied once. A missing store is created, an older one is migrated, a broken one is renamed.",
                ["mlflow sync @last"],
                "run_files.sync_mlflow",
                [
                    *run_or_sweep(count="*"),
                    switch("--all", help_text="all runs and sweeps"),
                    argument(
                        "--to",
                        metavar="URI",
                        help="another MLflow server or store, which gets a copy (default: tracking.uri of each run)",
                    ),
                    OUTPUT,
                ],
            ),
        ],
    ),
    Command(
        "model",
        "register, deploy, sign and verify models",
        "Register or deploy the model of a completed run; sign, verify or convert a model. On this machine, MLflow's"
        " registry holds the models, and endpoints are servers on the loopback interface.",
        ["model register @last --name bert"],
        actions=[
            Command(
                "register",
                "register the model of a run, or of the best trial of a sweep",
                "Register the model of a completed run as an MLflow model, with its lineage; of a sweep, the model of"
                " its best trial. mlflow.pyfunc.load_model and `mlflow models serve` return the predictions of"
                " `submit predict`, and --model models:/NAME@ALIAS starts a job from it. A second call makes no second"
                " version.",
                ["model register @last --name bert --alias champion", "model register SWEEP --name bert"],
                "cloud.register_model",
                [
                    *run_or_sweep(),
                    argument(
                        "--name",
                        dest="model_name",
                        metavar="NAME",
                        help="name of the model (default: the run's name without its hash)",
                    ),
                    argument(
                        "--alias", metavar="ALIAS", help="alias of the version in MLflow's registry, such as champion"
                    ),
                    argument(
                        "--checkpoints",
                        action="store_true",
                        help="also log the model of each kept checkpoint in MLflow, without a version",
                    ),
                    OUTPUT,
                ],
            ),
            Command(
                "deploy",
                "deploy a run's model to an endpoint",
                "Deploy the model of a completed run to an endpoint that answers requests with its predictions.",
                ["model deploy @last --endpoint bert"],
                "cloud.deploy_model",
                [
                    *run(),
                    argument("--endpoint", required=True, metavar="NAME", help="name of the endpoint"),
                    argument(
                        "--sku",
                        completer=completers.sizes,
                        metavar="SIZE",
                        help="machine size on Azure (default: Standard_DS3_v2)",
                    ),
                    argument(
                        "--traffic",
                        type=percent,
                        metavar="PERCENT",
                        help="add a second deployment to an existing endpoint on Azure, with this share of its traffic",
                    ),
                    argument(
                        "--require-signature",
                        type=Path,
                        metavar="KEY",
                        help="public key that must have signed the model; on this machine only",
                    ),
                    YES,
                    OUTPUT,
                ],
            ),
            Command(
                "endpoints",
                "list the endpoints of the workspace",
                "List the online endpoints of an Azure ML workspace: deployments, traffic, model and version.",
                ["model endpoints"],
                "cloud.list_endpoints",
                [OUTPUT],
            ),
            Command(
                "traffic",
                "divide the traffic of an endpoint",
                "Divide the traffic of an Azure ML endpoint between its deployments. The sum must be 100.",
                ["model traffic bert blue=90,green=10"],
                "cloud.shift_traffic",
                [
                    ENDPOINT,
                    argument("traffic", metavar="NAME=PERCENT,...", help="deployments and their share of the traffic"),
                    YES,
                    OUTPUT,
                ],
            ),
            Command(
                "rollback",
                "give all traffic to the former deployment",
                "Give all traffic of an Azure ML endpoint to the deployment from before the last"
                " `model deploy --traffic`.",
                ["model rollback bert"],
                "cloud.roll_back",
                [
                    ENDPOINT,
                    switch("--delete", help_text="also delete the new deployment and its machine"),
                    YES,
                    OUTPUT,
                ],
            ),
            Command(
                "sign",
                "sign a model",
                "Sign all files of a model with a private key, as OpenSSF model signing does, without a network. The"
                " signature is model.sig in the folder. Needs the extra signing.",
                ["model sign @last --key signing.pem"],
                "models.sign",
                [
                    MODEL,
                    BACKEND,
                    argument(
                        "--key",
                        type=Path,
                        required=True,
                        metavar="FILE",
                        help="private key: PEM file, on the curve P-256, P-384 or P-521, without a password",
                    ),
                    OUTPUT,
                ],
            ),
            Command(
                "verify",
                "verify the signature of a model",
                "Verify that a model has exactly the files that the owner of a key signed. A changed, added or missing"
                " file is an error.",
                ["model verify downloads/bert --key signing.pub"],
                "models.verify",
                [
                    MODEL,
                    BACKEND,
                    argument("--key", type=Path, required=True, metavar="FILE", help="public key: PEM file"),
                    OUTPUT,
                ],
            ),
            Command(
                "convert",
                "convert pickled weights to safetensors",
                "Convert pytorch_model.bin of a folder to model.safetensors. torch reads the pickle with weights_only,"
                " which accepts only tensors by name. Use it only for files from a source that you trust.",
                ["model convert downloads/bert"],
                "models.convert",
                [argument("folder", type=Path, metavar="FOLDER", help="folder with pytorch_model.bin"), OUTPUT],
            ),
            Command(
                "delete",
                "delete an endpoint",
                "Delete an endpoint and its machine.",
                ["model delete bert"],
                "cloud.delete_endpoint",
                [ENDPOINT, BACKEND, YES, OUTPUT],
            ),
        ],
    ),
)
