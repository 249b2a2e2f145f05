"""Ignore files: the snapshot excludes the same files as git."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.snapshot.walk import Walk

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
NAMES = ["a", "b", "foo", "bar.txt", "x.py", "data", ".h"]
SEGMENTS = [*NAMES, "*", "**", "*.txt", "?", "f*", "[ab]", "[!a]*", "*a*", "[a-f]oo", r"\*", "[]a]", "[[:alpha:]]*"]


def write(root: Path, **files: str) -> None:
    """Write files by path; `__` is a slash, so that paths are keywords."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def shipped(root: Path, repository: Path | None = None) -> set[str]:
    walk = Walk(root, repository=repository, excluded={}, reserved=frozenset())
    assert walk.obstacles == []
    return {file.path for file in walk.found}


def kept_by_git(root: Path) -> set[str]:
    command = ["git", "-C", str(root), "ls-files", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return {path for path in listed if path and not path.endswith(".gitignore")}


def random_pattern(draw: random.Random) -> str:
    pattern = "/".join(draw.choices(SEGMENTS, k=draw.choice([1, 1, 1, 2, 2, 3, 4])))
    pattern = "/" * (draw.random() < 0.3) + pattern + "/" * (draw.random() < 0.3)
    return "!" * (draw.random() < 0.35) + pattern + draw.choice(["", "", "", "", "  ", r"\ ", "\r"])


def random_tree(draw: random.Random, folder: Path, depth: int = 0) -> None:
    folder.mkdir()
    if depth == 0 or draw.random() < 0.15:
        patterns = [random_pattern(draw) for _ in range(draw.randint(1, 5))]
        (folder / ".gitignore").write_bytes("\n".join(patterns).encode())
    for name in draw.sample(NAMES, draw.randint(2, 5)):
        if "." not in name[1:] and depth < 3 and draw.random() < 0.7:
            random_tree(draw, folder / name, depth + 1)
        else:
            (folder / name).touch()


@needs_git
def test_random_ignore_patterns_match_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    trees = [tmp_path / f"tree-{seed}" for seed in range(150)]
    for seed, tree in enumerate(trees):
        random_tree(random.Random(seed), tree)
    kept = kept_by_git(tmp_path)
    for tree in trees:
        ours = {f"{tree.name}/{path}" for path in shipped(tree, tmp_path)}
        assert ours == {path for path in kept if path.startswith(f"{tree.name}/")}, tree.name
    assert len(kept) > 1000


@needs_git
@pytest.mark.parametrize(
    "patterns",
    [
        "data/\n!data/keep.py",  # an excluded folder is not entered again
        "data/*\n!data/keep.py",
        "data/**\n!data/keep.py",
        "data/**/\n",
        "*\n!*/\n!*.py",
        "/keep.py",
        "keep.py",
        "sub/keep.py",
        "**/keep.py",
        "**/data/**",
        "a/**/keep.py",
        "# keep.py\n\\#x\n\\!y",
        "!*.py\ndata/",  # an earlier line that re-includes nothing
        "*.py\n!sub/\n",
        "[[:digit:]]*\n[[]x",
        "data",
        "keep.py/",
        "\ufeffdata\r\n*.txt\r\n",
        "nothing\\",
        "space\\ ",
        "data   ",
        "!",
        "/",
    ],
)
def test_pattern_means_the_same_as_in_git(tmp_path: Path, patterns: str) -> None:
    names = ["keep.py", "data__keep.py", "data__deep__keep.py", "sub__keep.py", "a__b__c__keep.py", "a__keep.py"]
    write(tmp_path, **dict.fromkeys([*names, "sub__data__x.txt", "#x", "!y", "1st", "[x", "data.txt", "space "], ""))
    (tmp_path / ".gitignore").write_text(patterns, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert shipped(tmp_path) == kept_by_git(tmp_path)


@needs_git
def test_gitignores_up_to_repository_root_apply(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write(tmp_path, **{".gitignore": "c.py\n"})
    write(
        repository,
        **{
            ".gitignore": "*.ckpt\n/experiments/first/a.py\n/experiments/\n",
            "experiments__.gitignore": "b.py\n",
            "experiments__first__.gitignore": "!keep.ckpt\n",
            "experiments__first__deep__.gitignore": "/d.py\n!b.py\n",
        },
    )
    code = repository / "experiments" / "first"
    write(
        code, **dict.fromkeys(["a.py", "b.py", "c.py", "x.ckpt", "keep.ckpt", "deep__b.py", "deep__d.py", "d.py"], "")
    )
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    walk = Walk(code, repository=repository, excluded={}, reserved=frozenset())
    assert [file.path for file in walk.found] == ["c.py", "d.py", "deep/b.py", "keep.ckpt"]
    assert walk.ignore_files == ["../../.gitignore", "../.gitignore", ".gitignore", "deep/.gitignore"]
    why = {entry.path: entry.why for entry in walk.left_out if not entry.path.endswith(".gitignore")}
    assert why == {
        "a.py": "../../.gitignore",
        "b.py": "../.gitignore",
        "deep/d.py": "deep/.gitignore",
        "x.ckpt": "../../.gitignore",
    }


def test_amlignore_at_root_overrides_gitignore(tmp_path: Path) -> None:
    code = tmp_path / "code"
    write(tmp_path, **{".gitignore": "c.py\n"})
    write(
        code,
        **{".amlignore": "a.py\n", ".gitignore": "b.py\n", "sub__.amlignore": "d.py\n", "sub__.gitignore": "d.py\n"},
        **dict.fromkeys(["a.py", "b.py", "c.py", "sub__d.py"], ""),
    )
    walk = Walk(code, repository=tmp_path, excluded={}, reserved=frozenset())
    assert [file.path for file in walk.found] == ["b.py", "c.py", "sub/d.py"]
    assert walk.ignore_files == [".amlignore"]


def test_without_ignore_file_everything_is_code(tmp_path: Path) -> None:
    write(tmp_path, **dict.fromkeys(["a.py", ".flake8", "configs__b.yaml", ".github__ci.yml"], ""))
    assert shipped(tmp_path) == {"a.py", ".flake8", "configs/b.yaml", ".github/ci.yml"}
