"""The parts of a gateway, put together. Each file makes some; the exit stack takes them apart in the reverse order.

    foundation.py   database, telemetry, policies      sandboxes.py   engine, keeper, and what is around both
    work.py         tool calls and runs                services.py    what is served of them, each service listed once

`gateway/server.py` does it in this order, and listens.
"""
