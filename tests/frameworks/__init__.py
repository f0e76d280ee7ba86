"""Each adapter of gateway/integrations under its own framework: `deploy/run-tests frameworks`.

`python -m tests.frameworks` starts one gateway and runs the tests of each folder here by the python of its framework's
environment, which has neither the packages of the gateway nor those of its tests: they import the framework, pytest,
`airlock` and `gateway.integrations`. pytest.ini and conftest.py here are all that they share.

To add a framework NAME:

    deploy/frameworks/NAME.in   what to install, each pinned; then deploy/frameworks/lock NAME and .../install NAME
    tests/frameworks/frameworks.py   its entry: the distribution, its own suite if it has one, and the adapter's file
    tests/frameworks/NAME/test_suite.py   the framework's own suite, if it has one: counted apart
    tests/frameworks/NAME/test_*.py   our tests, among them one that runs the program of docs/integrations.md
    docs/integrations.md        a section with the program; `deploy/run-tests frameworks NAME --write` adds its row
"""
