"""Names of environment variables that hold secrets."""

from __future__ import annotations

import re

SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|SIGNATURE", re.IGNORECASE)
