"""`python -m gateway.cli` is `airlock`."""

from gateway.cli.main import main

main()
