"""Print the files of more than 600 lines and fail: such files must be split."""

import subprocess
import sys
from pathlib import Path

LONGEST = 600

listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True).stdout.split()
lengths = {name: len(Path(name).read_text(encoding="utf-8").splitlines()) for name in listed if Path(name).is_file()}
too_long = [f"{name}: {length} lines, at most {LONGEST}" for name, length in lengths.items() if length > LONGEST]
print("\n".join(too_long) or f"{len(lengths)} files, none longer than {LONGEST} lines")
sys.exit(bool(too_long))
