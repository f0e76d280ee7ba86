"""`python -m tests.kubernetes.unwalled PYTHON -m gateway.cli ...`: a gateway whose sandboxes need no walls.

The cluster for tests runs Pods as processes, which have none, so no gateway would use them. All else is the gateway's.
"""

from __future__ import annotations

import sys

from gateway.cli.main import main
from sandbox.engines.kubernetes.boot import Inspection
from tests.conformance.kubernetes_engines import NoWalls

if __name__ == "__main__":
    Inspection.introduced = NoWalls.introduced  # type: ignore[method-assign]
    Inspection.refuse_weak = NoWalls.refuse_weak  # type: ignore[method-assign]
    sys.argv = ["airlock", *sys.argv[sys.argv.index("gateway.cli") + 1 :]]
    main()
