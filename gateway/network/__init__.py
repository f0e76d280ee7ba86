"""What leaves a sandbox, by one door: connections of tool code, judged, dialled and relayed by the gateway.

Nothing that arrives from a sandbox is trusted.
"""
