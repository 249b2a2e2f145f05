"""`python -m orchestrator`: the command line where `orchestrator` is not on the PATH, as in a notebook's kernel."""

import sys

from orchestrator.cli.main import main

sys.exit(main())
