"""A Kubernetes cluster for tests, in a thread of the test's process: `with running_cluster(images) as cluster`.

api_server.py serves the API over HTTPS, strict against schemas.json; its rules are in requests.py (the verbs),
validation.py, admission.py, deletion.py and access.py (RBAC), its objects in store.py, and faults.py disturbs it on
demand. kubelet.py runs Pods as processes of this machine, scheduler.py places them, volumes.py provides and snapshots
their directories. agent_sandbox.py and sandbox_claims.py are the controller of agents.x-k8s.io, with its races.

It stands beside a real cluster, never instead: `make test-kubernetes` runs the same suites against one.
"""
