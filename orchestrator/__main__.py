"""`python -m orchestrator` is `orch`."""

import sys

from orchestrator.cli import main

sys.exit(main())
