"""Sandboxes as Pods of a Kubernetes cluster.

    kubernetes_engine                       the engine, put together from the parts below
    parts                                   what they share: the objects of the cluster, records of threads, attachments
    creation, boot                          how a sandbox comes up: its Pod, the claim of its relay, the handshake
    kubernetes_pool                         sandboxes made ahead of demand
    unowned                                 Pods and claims without an owner: taken or removed, by compare-and-swap
    endings                                 how sandboxes are stopped and removed, one or all of a tenant
    reconciliation                          what dead processes left
    reachability                            sandboxes that one gateway does not reach, and another may
    listing                                 what lists show of sandboxes
    workspaces                              a thread's files as a whole
    volume_snapshots, copied_volumes        snapshots of them as copies of volumes
    attached                                the sandboxes that this process uses, and what it shares with others
    gates, records                          a thread's record and its gate: one Lease
    workloads                               what runs a sandbox: a Pod, or a Sandbox of agents.x-k8s.io
    setup, recorded_mode                    the instance's keys, and what all of its sandboxes are
    namespaces, allowance                   what each namespace of sandboxes has, and the most it may have
    preflight                               what every sandbox needs of a cluster, asked before the first is made
    trial, network_probe, image_probe       what `airlock doctor` tries out, and leaves nothing of
    mirror                                  a copy of Pods and Leases, kept by watches
    pods                                    what a Pod's status means
    manifests                               the objects: all isolation that a Pod has
    answers, refusals                       answers of the API, bounded; what the cluster forbids, and what to do
    remains                                 all that an instance has on a cluster, for `airlock uninstall`
    resources                               the kinds of objects, and the verbs that are asked of each
    kubernetes_requests                     the API: errors, retries, watches; imports kubernetes_asyncio

The cluster sees digests and sizes; the names of threads are in the records of Leases alone (records.py).

Start at `kubernetes_engine.py`. Imports sandbox.engines and sandbox layers below 6.
"""
