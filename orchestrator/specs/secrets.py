"""Names of environment variables that hold secrets, and what is shown in place of their values."""

from __future__ import annotations

import re

SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|SIGNATURE", re.IGNORECASE)
HIDDEN = "(not shown)"
