"""Shell commands that make readable files of others: documents, archives and saved datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from train_jobs.config.errors import in_shell, python_command

EXCEL, WORD, PDF, RTF = "an Excel workbook", "a Word document", "a PDF document", "an RTF document"
ZIP, ARROW = "a ZIP archive", "an Arrow file"
_PANDOC = "pandoc {file} -t plain --wrap=none -o {text}"
_TO_TEXT = {WORD: _PANDOC, RTF: _PANDOC, PDF: "pdftotext {file} {text}", ZIP: "unzip {file} -d {folder}"}
_BY_SUFFIX = {".docx": _PANDOC, ".odt": _PANDOC, ".rtf": _PANDOC, ".pdf": _TO_TEXT[PDF]}
_UNPACK = {"gzip": "gunzip", "bzip2": "bunzip2", "xz": "unxz", "zstd": "unzstd"}
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"


def file_conversion(path: str, suffix: str, kind: str) -> str | None:
    """Return the command that makes text or a table of a file; None: none is known.

    Args:
        path: path of the file.
        suffix: its suffix.
        kind: one of the constants above, or "compressed with METHOD".
    """
    base, method = path.removesuffix(suffix), kind.removeprefix("compressed with ")
    if method in _UNPACK:
        return f"{_UNPACK[method]} --keep {in_shell(path)}"
    if kind == EXCEL:  # CSV even where text is wanted: --column names the text
        write = f"pd.read_excel({path!r}).to_csv({base + '.converted.csv'!r}, index=False)"
        return python_command(f"import pandas as pd; {write}")
    if kind == ARROW:
        write = f"p.write_table(f.read_table({path!r}), {base + '.parquet'!r})"
        return python_command(f"import pyarrow.feather as f, pyarrow.parquet as p; {write}")
    if kind not in _TO_TEXT:
        return None
    return _TO_TEXT[kind].format(file=in_shell(path), text=in_shell(base + ".txt"), folder=in_shell(base))


def folder_conversion(folder: Path, files: Iterable[Path]) -> str | None:
    """Return the command that makes readable files of those of a folder; None: none is known.

    Args:
        folder: the folder.
        files: its files that cannot be read; the most frequent kind counts.
    """
    if saved := _as_parquet(folder):
        return saved
    suffixes = Counter(path.suffix for path in files if path.suffix.lower() in _BY_SUFFIX)
    if not suffixes:
        return None
    suffix = suffixes.most_common(1)[0][0]
    command = _BY_SUFFIX[suffix.lower()].format(file="{}", text="{}.txt")
    return f"find {in_shell(folder)} -name '*{suffix}' -exec {command} ';'"


def _as_parquet(folder: Path) -> str | None:
    """Return the command that writes a dataset as Parquet that Hugging Face's `save_to_disk` wrote as Arrow files.

    Its splits become one file each, such as `NAME-parquet/train.parquet`.
    """
    load = f"from datasets import load_from_disk; d = load_from_disk({str(folder)!r})"
    if (folder / _SAVED_SPLITS).is_file():
        write = "[d[name].to_parquet(f'{folder}/{name}.parquet') for name in d]"
        return python_command(f"import os; {load}; folder = {f'{folder}-parquet'!r}; os.makedirs(folder); {write}")
    if (folder / _SAVED).is_file() and any(folder.glob("*.arrow")):
        return python_command(f"{load}; d.to_parquet({f'{folder}.parquet'!r})")
    return None
