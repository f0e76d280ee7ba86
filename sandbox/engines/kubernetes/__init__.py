"""Sandboxes as Pods of a Kubernetes cluster.

    kubernetes_engine                       the engine, put together from the parts below
    parts                                   what they share: the objects of the cluster, records of threads, attachments
    creation, boot                          how a sandbox comes up: its Pod, the claim of its relay, the handshake
    kubernetes_pool                         sandboxes made ahead of demand
    unowned                                 Pods and claims without an owner: taken or removed, by compare-and-swap
    endings                                 how sandboxes are stopped and removed, one or all of a tenant
    reconciliation                          what dead processes left
    listing                                 what lists show of sandboxes
    workspaces                              a thread's files as a whole
    attached                                the sandboxes that this process uses, and what it shares with others
    gates, records                          a thread's record and its gate: one Lease
    workloads                               what runs a sandbox: a Pod, or a Sandbox of agents.x-k8s.io
    setup                                   the instance's keys
    namespaces, allowance                   what each namespace of sandboxes has, and the most it may have
    preflight                               what every sandbox needs of a cluster, asked before the first is made
    trial, network_probe, image_probe       what `airlock doctor` tries out, and leaves nothing of
    mirror                                  a copy of Pods and Leases, kept by watches
    pods                                    what a Pod's status means
    manifests                               the objects: all isolation that a Pod has
    answers, refusals                       answers of the API, bounded; what the cluster forbids, and what to do
    kubernetes_requests                     the API: verbs, errors, retries, watches; imports kubernetes_asyncio
    refusals                                what it means that the cluster forbids something

The cluster sees digests and sizes; the names of threads are in the records of Leases alone (records.py).

Start at `kubernetes_engine.py`. Imports sandbox.engines and sandbox layers below 6.
"""
