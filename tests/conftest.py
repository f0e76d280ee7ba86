"""What all tests share: a failure that hypothesis finds is found again by the next run; PostgreSQL where one asks."""

import os
import signal

# Before grpc is imported anywhere: its handlers start threads again in a process that the daemon's tests fork.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Set by readline in the process that starts pytest-xdist's workers: tables would be as narrow.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# A shell that runs this in the background ignores SIGINT, nohup ignores SIGHUP, and what is started would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

from hypothesis import settings  # noqa: E402 - after the environment is as grpc and tables need it

import tests.examples  # noqa: E402, F401 - registers the profiles

# A plugin before those that import it: pytest rewrites its assertions only if it is imported as a plugin.
pytest_plugins = ["tests.postgres", "tests.tiers", "tests.report", "tests.workers"]

collect_ignore = ["frameworks"]  # run by the pythons of their own environments: `deploy/run-tests frameworks`

settings.load_profile("quick")  # --hypothesis-profile full: more examples
