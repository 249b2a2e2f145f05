"""Look up known vulnerabilities of the locked packages with pip-audit, and report what could not be checked.

    make audit    # python -m supply_chain.audit

Exit codes: 0 every package was checked and none has a known vulnerability; 1 one has; 3 not checked, for all or some.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from supply_chain.lock import CUDA_LOCK, LOCK, pins

SERVICES = ("pypi", "osv")
CLEAN, VULNERABLE, NOT_CHECKED = 0, 1, 3


def audit(service: str) -> list[dict[str, Any]]:
    """Return what a service knows of each locked package; empty if it does not answer."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json", "--timeout", "10"]
    command += ["--progress-spinner", "off", "--vulnerability-service", service]
    command += [word for path in (LOCK, CUDA_LOCK) for word in ("--requirement", str(path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        last = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        print(f"{service}: {last[0][:200]}", file=sys.stderr)
        return []


def main() -> int:
    """Print the findings and return the exit code."""
    left = {**pins(LOCK.read_text()), **pins(CUDA_LOCK.read_text())}
    total, found = len(left), []
    for service in SERVICES:
        for one in audit(service) if left else ():
            if "skip_reason" not in one and left.pop(one["name"], None):
                found += [f"{one['name']} {one['version']}: {flaw['id']}" for flaw in one["vulns"]]
    print("\n".join([*found, f"checked: {total - len(left)} of {total} packages"]))
    if left:
        print(f"NOT CHECKED: {len(left)} packages: no service for vulnerabilities answered for them")
    return VULNERABLE if found else NOT_CHECKED if left else CLEAN


if __name__ == "__main__":
    sys.exit(main())
