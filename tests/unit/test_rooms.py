"""Modules outside of `orchestrator/jobs` never branch on the kind of a job."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.jobs.registry import SHIPPED

PACKAGE = Path(__file__).resolve().parents[2] / "orchestrator"
ROOMS = {address.rpartition(".")[0] for address in SHIPPED.values()}  # the packages of the kinds
CONFIGS = {"PretrainConfig", "PrepareConfig", "FinetuneConfig", "PredictConfig"}
OF_A_JOB = {"estimates", "job", "plan", "spec", "status"}  # modules that pass a kind on
PUBLIC = "orchestrator.jobs.pretrain.spec"  # the top of the package re-exports a spec


def own_classes() -> set[str]:
    """Return names of the classes that belong to one kind."""
    folders = [PACKAGE.parent.joinpath(*room.split(".")) for room in ROOMS]
    trees = [ast.parse(path.read_text()) for folder in folders for path in folder.glob("*.py")]
    return CONFIGS | {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


CLASSES = own_classes()


def branches(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the places of a module that branch on the kind of a job."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, asked]):
                if names(asked) & CLASSES:
                    yield node
            case ast.Call(func=ast.Name(id="hasattr"), args=[held, _]) if names(held) & OF_A_JOB:
                yield node
            case ast.Call(func=ast.Name(id="getattr"), args=[held, _, _]) if names(held) & OF_A_JOB:
                yield node
            case ast.Compare():
                if words(node) & {*SHIPPED} or names(node) & CLASSES:
                    yield node
            case ast.match_case(pattern=pattern):
                if words(pattern) & {*SHIPPED} or names(pattern) & CLASSES:
                    yield pattern
            case ast.ImportFrom(module=str(module)):
                if module.rpartition(".")[0] in ROOMS and module != PUBLIC:
                    yield node
            case _:
                pass


def names(node: ast.AST) -> set[str]:
    """Return names in an expression."""
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def words(node: ast.AST) -> set[str]:
    """Return texts in an expression, except keys that it only reads."""
    keys = {id(part.slice) for part in ast.walk(node) if isinstance(part, ast.Subscript)}
    found = (part for part in ast.walk(node) if isinstance(part, ast.Constant) and id(part) not in keys)
    return {part.value for part in found if isinstance(part.value, str)}


def test_modules_outside_jobs_never_branch_on_the_kind() -> None:
    asked = [
        f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "jobs"
        for node in branches(ast.parse(path.read_text()))
    ]
    assert asked == []


@pytest.mark.parametrize(
    "bad",
    [
        "isinstance(plan, PretrainPlan | PreparePlan)",
        "isinstance(spec, (JobSpec, FinetuneSpec))",
        "issubclass(model, predict.EvaluateSpec)",
        "type(plan) is PredictPlan",
        "hasattr(plan.estimates, 'model_bytes')",
        "getattr(plan.job, 'data', None)",
        "status.kind == 'finetune'",
        "'prepare' != kind",
        "kind in {'evaluate', 'predict'}",
        "match kind:\n    case 'pretrain':\n        pass",
        "match plan:\n    case FinetunePlan():\n        pass",
        "from orchestrator.jobs.finetune.plan import FinetunePlan",
    ],
)
def test_branch_on_the_kind_is_found(bad: str) -> None:
    assert list(branches(ast.parse(bad)))


@pytest.mark.parametrize(
    "good",
    ["isinstance(path, Path)", "job_kind('finetune')", "link.kind == 'data'", "result['predict'] == 1"],
)
def test_other_branches_are_not_found(good: str) -> None:
    assert not list(branches(ast.parse(good)))
