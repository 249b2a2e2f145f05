"""Runs a command line of the orchestrator and leaves in a file how many megabytes of memory it took at most.

    python tests/peak.py FILE WORD...

By its own VmHWM: what its parent would be told (ru_maxrss) is at least what the parent took itself.
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
