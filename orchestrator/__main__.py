"""`python -m orchestrator`: the command line, where no `orchestrator` is on the PATH, as in a notebook's kernel."""

import sys

from orchestrator.cli.main import main

sys.exit(main())
