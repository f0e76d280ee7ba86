"""The demo: one real run on a gateway of its own, shown live. Run it with `make demo` or `python -m examples.demo`."""
