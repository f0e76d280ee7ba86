.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check bench soak fuzz gateway-image proto reference lock clean

# Lines that begin with "changed:" name what a command changes on this machine. An engine that demo, test or bench had
# to start is stopped at their end, also on failure and Ctrl-C; one that was running is left as it was.

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv, find or start a Docker engine, make the sandbox images
	@deploy/setup

demo: ## Show one agent run, from an empty machine to the answer
	@deploy/setup -- .venv/bin/python -m examples.demo

test: ## Run every check, and the tests that every change must pass, with real containers
	@deploy/test-tools
	@deploy/setup runtime sandbox gateway -- sh -c 'deploy/check && deploy/run-tests'

test-all: ## Run every check and every test: PostgreSQL, all seeds and shells, gVisor too
	@deploy/test-tools
	@deploy/setup runtime sandbox gateway -- sh -c 'deploy/check && deploy/run-tests all'

check: ## Check format, lint, types, imports, protos and stubs; needs no engine
	@deploy/venv
	@deploy/check

bench: ## Measure the loop, and the gateway beside docker exec, SWE-ReX and bare gRPC
	@deploy/setup -- .venv/bin/python -m tests.bench

soak: ## Keep the gateway at twice its capacity for 30 minutes; SOAK="--minutes 5" for less
	@deploy/setup -- .venv/bin/python -m tests.bench.soak $(SOAK)

fuzz: ## Send 110,000 hostile inputs to both ends of the channel
	@deploy/setup -- .venv/bin/python -m tests.fuzz

gateway-image: ## Make the airlock-gateway image that compose.yaml runs
	@deploy/setup runtime sandbox gateway

proto: ## Generate the Python stubs from proto/
	@deploy/venv
	@deploy/stubs

reference: ## Write docs/reference/ from what it describes
	@deploy/venv
	@.venv/bin/python deploy/reference.py

lock: ## Resolve the newest dependencies into deploy/*.lock
	@deploy/lock

clean: ## Remove .venv, .build and what this clone made in Docker; gateways you set up stay
	@deploy/clean
