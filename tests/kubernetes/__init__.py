"""A Kubernetes cluster for tests, in a thread of the test's process; its Pods run as processes of this machine.

    with running_cluster({"sandbox:1": images.daemon, "relay:1": images.python_module}) as cluster:
        space = cluster.namespace("airlock", {"pod-security.kubernetes.io/enforce": "baseline"})
        token = cluster.grant(space, "gateway", rules_of_the_chart)
        kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig", token)
        ...                                                     # the engine creates a Pod, and calls its daemon
        cluster.call(cluster.nodes.kill, space, pod, "main")    # it runs out of memory
        cluster.disturb(Fault("watch", "pods", drop_after_events=1))
        cluster.compact()                                       # older versions are 410 Gone
        assert cluster.used(space, "gateway") == what_the_chart_grants

cluster.py is the whole, and what a test does to it. api_server.py serves the API over HTTPS, strict against
schemas.json: requests.py has its verbs, validation.py, admission.py, deletion.py and access.py (RBAC) its rules,
store.py its objects and their history, faults.py its disturbances. scheduler.py places Pods, kubelet.py runs them by
pod_run.py, volumes.py makes, binds and snapshots their volumes, nodes.py fails. agent_sandbox.py and sandbox_claims.py
are the controllers of agents.x-k8s.io, whose caches may lag behind the API.

helm.py renders the Helm chart of gateways (test_chart.py); granted() is what its Role gives them, for `cluster.grant`.

It stands beside a real cluster, never instead: `make test-kubernetes` runs the same suites against one.
"""
