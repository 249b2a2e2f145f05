"""Run a command line of the orchestrator and write its peak memory in MB to a file.

    python tests/peak.py FILE WORD...

It reads VmHWM of its own process: ru_maxrss, which the parent could read, is at least the memory of the
parent itself.
"""

import re
import sys
from pathlib import Path

from orchestrator.cli.main import main

code = main(sys.argv[2:])
found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
assert found is not None
Path(sys.argv[1]).write_text(str(int(found[1]) / 1024))
sys.exit(code)
