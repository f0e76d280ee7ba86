.DEFAULT_GOAL := help
.PHONY: help setup demo eval test test-models test-frameworks test-kubernetes test-all check wheel bench soak fuzz gateway-image proto reference chart lock clean

# Lines that start with "changed:" name what a command changes on this machine. If demo, test or bench had to start an
# engine, they stop it at their end, also on failure and Ctrl-C. An engine that was already running stays as it was.

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Create .venv, find or start a Docker engine, build the sandbox images
	@deploy/setup

demo: ## Show an agent fix a small project under a policy; sets up everything it needs
	@deploy/setup -- .venv/bin/python -m examples.demo

eval: ## Evaluate the default agent: MODEL=gpt-5-mini or MODEL=model.yaml, EVAL="--at-once 1 fix-test" for less
	@[ -n "$(MODEL)" ] || { echo "name a model: make eval MODEL=gpt-5-mini, or a YAML file with its settings" >&2; exit 2; }
	@deploy/setup -- .venv/bin/python -m examples.evaluation "$(MODEL)" $(EVAL)

test: ## Run every check, and the tests that each change must pass, with real containers
	@deploy/test-tools
	@deploy/setup runtime sandbox sandbox-slim gateway -- sh -c 'deploy/check && deploy/run-tests'

test-models: ## Run the tests against real model servers, which it builds once (ten minutes)
	@deploy/setup -- sh -c 'deploy/models && deploy/run-tests models'

test-frameworks: ## Run the tests of the adapters, each with its framework in an environment of its own
	@deploy/setup -- sh -c 'deploy/frameworks/install && deploy/run-tests frameworks'

test-kubernetes: ## Run the tests of the Kubernetes engine on a real cluster: KUBECONFIG=FILE (docs/kubernetes.md)
	@[ -n "$(KUBECONFIG)" ] || { echo "name a cluster: make test-kubernetes KUBECONFIG=FILE" >&2; exit 2; }
	@deploy/venv
	@KUBECONFIG="$(KUBECONFIG)" deploy/run-tests kubernetes

test-all: ## Run every check and every test but those on a real cluster: PostgreSQL, all seeds and shells, gVisor, model servers, frameworks
	@deploy/test-tools all
	@deploy/setup runtime sandbox sandbox-slim gateway -- sh -c 'deploy/check && { deploy/models || true; } && { deploy/frameworks/install || true; } && deploy/run-tests all'

check: ## Check format, lint, types, imports, protos, stubs and reference; needs no engine
	@deploy/venv
	@deploy/check

bench: ## Measure the loop, and the gateway next to docker exec, SWE-ReX and bare gRPC; BENCH="service budget" for less
	@deploy/setup -- .venv/bin/python -m tests.bench $(BENCH)

soak: ## Load the gateway with twice its capacity for 30 minutes; SOAK="--minutes 5" for less
	@deploy/setup -- .venv/bin/python -m tests.bench.soak $(SOAK)

fuzz: ## Send 110,000 hostile inputs to both ends of the channel
	@deploy/setup -- .venv/bin/python -m tests.fuzz

gateway-image: ## Build the airlock-gateway image that compose.yaml runs
	@deploy/setup runtime sandbox sandbox-slim gateway

wheel: ## Build the wheels of the gateway and of the client into .build/wheels
	@deploy/venv
	@deploy/wheel

proto: ## Generate the Python stubs and gateway/http/openapi.json from proto/
	@deploy/venv
	@deploy/stubs
	@.venv/bin/python deploy/openapi.py

reference: ## Generate docs/reference/ and docs/policy.schema.json from the code and the protos
	@deploy/venv
	@.venv/bin/python deploy/reference.py

chart: ## Generate what follows from the Helm chart: the schema of its values, deploy/kustomize/base
	@deploy/venv
	@.venv/bin/python deploy/chart.py

lock: ## Resolve the newest dependencies into deploy/*.lock
	@deploy/lock

clean: ## Remove .venv, .build and what this clone created in Docker; keep gateways that you set up
	@deploy/clean
