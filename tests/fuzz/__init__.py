"""Both ends of the channel, fuzzed: `make fuzz`, or `python -m tests.fuzz --inputs N`. `make test` has a short run."""
