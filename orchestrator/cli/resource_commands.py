"""Declarations of the commands for data and for machines in the cloud."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import (
    OUTPUT,
    YES,
    Argument,
    Command,
    argument,
    idle_seconds,
    not_negative,
    positive,
    sentence,
    switch,
)
from orchestrator.specs.tiers import OLD_SPOT

PUBLISHED = ("glue", "squad", "wikipedia")
STORE = argument("store", metavar="STORE", help="folder or URL of a token store")

ASSET = (
    Command(
        "create",
        "create a data asset from files",
        "Upload a file or folder and create a version of a data asset. Only files whose content the workspace does not"
        " have yet are sent. An address in Azure is accepted too.",
        ["data asset create notes notes/"],
        "data.create_asset",
        [
            argument("name", metavar="NAME", help="name of the asset"),
            argument("source", metavar="PATH", help="file or folder, or azureml://datastores/NAME/paths/PATH"),
            argument("--version", metavar="VERSION", help="version (default: a hash of the files)"),
            OUTPUT,
        ],
    ),
    Command(
        "list",
        "list the data assets",
        "List the data assets of the workspace with their newest versions.",
        ["data asset list"],
        "data.list_assets",
        [OUTPUT],
    ),
    Command(
        "show",
        "show a data asset",
        "Show a version of a data asset: its address, its type and its other versions.",
        ["data asset show notes"],
        "data.show_asset",
        [argument("name", metavar="NAME[:VERSION]", help="asset (default: its newest version)"), OUTPUT],
    ),
)

DATA = (
    Command(
        "data",
        "fetch data, inspect token stores",
        "Fetch published data sets and models, and inspect token stores.",
        ["data fetch glue:MRPC"],
        actions=[
            Command(
                "fetch",
                "fetch Wikipedia, GLUE, SQuAD or a model",
                "Fetch published data, verify it and print its paths. After an interruption, the same command resumes"
                " the transfer; existing files are verified and kept. Proxies are read from HTTPS_PROXY, mirrors from"
                " mirrors.yaml in the orchestrator's home folder.",
                ["data fetch wikipedia:de --to dumps/"],
                "data.fetch_data",
                [
                    argument(
                        "what",
                        completer=lambda **_: list(PUBLISHED),
                        metavar="NAME",
                        help="wikipedia[:LANGUAGE], glue[:TASK], squad[:VERSION], or a model on the Hugging Face Hub",
                    ),
                    argument(
                        "--to",
                        type=Path,
                        metavar="DIR",
                        help="destination (default: data/NAME; for a model the Hub's cache)",
                    ),
                    argument(
                        "--mirror",
                        dest="mirrors",
                        action="append",
                        default=[],
                        metavar="URL",
                        help="use this mirror instead of the configured ones; may be repeated",
                    ),
                    argument(
                        "--date",
                        default="latest",
                        metavar="YYYYMMDD",
                        help="date of the Wikipedia dump (default: an interrupted one, or the newest)",
                    ),
                    OUTPUT,
                ],
            ),
            Command(
                "show",
                "show the contents of a token store",
                "Show the contents of a token store: its sources, the lengths of sentences and documents, sample"
                " documents, and one training example.",
                ["data show stores/wiki --png lengths.png"],
                "data.show",
                [
                    STORE,
                    argument("--png", type=Path, metavar="FILE", help="also plot the lengths to a PNG file"),
                    argument(
                        "--samples", type=int, default=3, metavar="N", help="number of documents to show (default: 3)"
                    ),
                    argument(
                        "--sequence-length",
                        type=int,
                        default=64,
                        metavar="N",
                        help="length of the training example in tokens (default: 64)",
                    ),
                    OUTPUT,
                ],
            ),
            Command(
                "verify",
                "verify a token store",
                "Verify every byte of a token store: checksums, counts, offsets, ids, vocabulary. Lists all problems;"
                " the exit code is 1 if there are any.",
                ["data verify stores/wiki"],
                "data.verify",
                [STORE, OUTPUT],
            ),
            Command(
                "asset",
                "create, list or show data assets on Azure",
                "Create, list or show the data assets of a workspace, which `--data azureml:NAME:VERSION` uses.",
                ["data asset create notes notes/"],
                actions=ASSET,
            ),
        ],
    ),
)


def _cluster(name: str, handler: str, summary: str, more: str, example: str, *own: Argument) -> Command:
    """Declare an action on the clusters of a workspace."""
    arguments = [
        *([] if name == "list" else [argument("--name", required=True, metavar="NAME", help="cluster name")]),
        argument("--subscription", dest="subscription_id", metavar="ID", help="Azure subscription"),
        argument("--resource-group", metavar="NAME", help="resource group of the workspace"),
        argument("--workspace", metavar="NAME", help="workspace (default: environment variables, then config.json)"),
        *own,
        OUTPUT,
    ]
    example = f"cluster {name} {example}".strip()
    return Command(name, summary, f"{sentence(summary)}.{more}", [example], f"cloud.{handler}", arguments)


def _scale(least: int | None, most: int | None, idle: int | None) -> tuple[Argument, ...]:
    """Declare the arguments of a cluster's scale with their defaults; None: the cluster's current value."""

    def default(value: int | None) -> str:
        return f"default: {'unchanged' if value is None else value}"

    return (
        argument(
            "--min-nodes",
            type=not_negative,
            default=least,
            metavar="N",
            help=f"minimum number of machines ({default(least)})",
        ),
        argument(
            "--max-nodes",
            type=positive,
            default=most,
            metavar="N",
            help=f"maximum number of machines ({default(most)})",
        ),
        argument(
            "--idle-seconds",
            type=idle_seconds,
            default=idle,
            metavar="S",
            help=f"seconds after which an idle machine is released ({default(idle)})",
        ),
    )


CLOUD = (
    Command(
        "cluster",
        "manage Azure ML clusters",
        "Create, scale, show and delete Azure ML clusters. An idle cluster has no machines and costs nothing, unless"
        " --min-nodes is above 0.",
        ["cluster create --name gpu --sku Standard_NC4as_T4_v3"],
        actions=[
            _cluster(
                "create",
                "create_cluster",
                "create a cluster, or update an existing one",
                " The scale of an existing cluster can change, its machine size and tier cannot. Asks for confirmation"
                " unless -y is given.",
                "--name gpu --sku Standard_NC4as_T4_v3",
                argument(
                    "--sku",
                    completer=completers.sizes,
                    required=True,
                    metavar="SIZE",
                    help="machine size, see orchestrator skus",
                ),
                argument(
                    "--tier",
                    choices=["dedicated", "spot", *sorted(OLD_SPOT)],
                    metavar="{dedicated,spot}",
                    default="dedicated",
                    help="tier of its machines; spot machines can be evicted (default: dedicated)",
                ),
                *_scale(0, 1, 120),
                YES,
            ),
            _cluster("list", "list_clusters", "list clusters and their idle cost", "", ""),
            _cluster("show", "show_cluster", "show a cluster and its idle cost", "", "--name gpu"),
            _cluster(
                "scale",
                "scale_cluster",
                "change the number of machines of a cluster",
                "",
                "--name gpu --max-nodes 8",
                *_scale(None, None, None),
                YES,
            ),
            _cluster(
                "delete",
                "delete_cluster",
                "delete a cluster and its machines",
                " Jobs that are running on it stop.",
                "--name gpu",
                YES,
            ),
        ],
    ),
    Command(
        "skus",
        "list Azure machine sizes and their prices",
        "List Azure machine sizes: GPUs, memory, InfiniBand, list price and its date. Works offline unless --refresh is"
        " given.",
        ["skus --gpus H100:8"],
        "cloud.list_sizes",
        [
            argument("--gpus", metavar="MODEL[:N]", help="only sizes with at least N GPUs of this model"),
            switch("--refresh", help_text="fetch current prices and sizes from Azure and store them"),
            argument("--region", default="eastus", help="region whose prices and sizes to fetch (default: eastus)"),
            OUTPUT,
        ],
    ),
)
