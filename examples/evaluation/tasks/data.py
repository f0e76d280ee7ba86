"""Tasks on data: add up a CSV file, merge JSON, read a binary header, ask a server."""

from __future__ import annotations

import json
import random
import struct

from examples.evaluation.evaluation_task import EvaluationTask, Files, Finished, encoded


def _sales() -> list[tuple[str, str, str]]:
    """Return customer, region and amount; customers may have commas, quotes and line ends in their names."""
    chosen = random.Random(20)  # noqa: S311 - the same sales each time
    customers = ("Miller", "Smith, Jones & Co", 'The "Old" Mill', "Weber\nfiliale Nord", "Ng")
    regions = ("north", "south", "east", "west")
    return [
        (chosen.choice(customers), chosen.choice(regions), f"{chosen.randrange(100, 99_999) / 100:.2f}")
        for _ in range(400)
    ]


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"' if any(c in field for c in ',"\n') else field


def _sales_csv() -> Files:
    rows = [("customer", "region", "amount"), *_sales()]
    return encoded({"sales.csv": "".join(",".join(map(_quoted, row)) + "\r\n" for row in rows)})


def _totals_are_right(done: Finished) -> str:
    cents: dict[str, int] = {}
    for _, region, amount in _sales():
        cents[region] = cents.get(region, 0) + round(float(amount) * 100)
    rows = [f"{region},{total // 100}.{total % 100:02}" for region, total in sorted(cents.items())]
    return done.differs("totals.csv", "\n".join(["region,total", *rows])) or done.changed()


_BASE = {
    "name": "shop",
    "database": {"host": "localhost", "port": 5432, "pool": {"min": 1, "max": 4}},
    "features": ["search", "cart"],
    "debug": True,
    "motto": "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
}
_OVERRIDE = {
    "database": {"host": "db.internal", "pool": {"max": 16}},
    "features": ["search"],
    "debug": None,
    "region": "eu",
}
_MERGED = {
    "name": "shop",
    "database": {"host": "db.internal", "port": 5432, "pool": {"min": 1, "max": 16}},
    "features": ["search"],
    "motto": "caf\N{LATIN SMALL LETTER E WITH ACUTE}",
    "region": "eu",
}


def _merge_is_right(done: Finished) -> str:
    return done.json_differs("merged.json", _MERGED) or done.changed()


def _image() -> Files:
    # Little-endian numbers would look plausible too.
    header = b"AIMG" + struct.pack(">HIIB", 3, 1025, 513, 4)
    return {
        "picture.aimg": header + bytes(range(256)) * 8,
        "FORMAT.md": b"# The AIMG format\n\nAll numbers are unsigned and big-endian. The file starts with the four "
        b"bytes `AIMG`, then version (2 bytes), width (4), height (4) and channels (1). Pixels follow.\n",
    }


def _header_is_right(done: Finished) -> str:
    expected = {"version": 3, "width": 1025, "height": 513, "channels": 4}
    return done.json_differs("picture.json", expected) or done.changed()


_SERVER = '''\
"""A server that says a word, another one each time it is started. It runs until it is stopped."""

import http.server
import pathlib
import secrets

WORD = secrets.token_hex(8)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with pathlib.Path("served.log").open("a") as log:
            log.write(f"{self.path} {WORD}\\n")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(WORD.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
pathlib.Path("port.txt").write_text(str(server.server_port))
server.serve_forever()
'''


def _word_was_served(done: Finished) -> str:
    word = done.text("word.txt")
    if not word or f"/word {word}" not in done.text("served.log").splitlines():
        return f"word.txt has {word!r}, which the server did not say at /word"
    return done.changed("server.py")


DATA = (
    EvaluationTask(
        "add-up-csv",
        "/workspace/sales.csv lists sales. Write /workspace/totals.csv with the columns region and total, one row for "
        "each region, sorted by region: the sum of its amounts, with two decimals.",
        _sales_csv,
        _totals_are_right,
    ),
    EvaluationTask(
        "merge-json",
        "Merge /workspace/override.json into /workspace/base.json and write the result to /workspace/merged.json. "
        "Objects are merged key by key, at each level. Any other value of override.json replaces the one of base.json. "
        "A null in override.json removes the key. Do not change the two files.",
        lambda: encoded({"base.json": json.dumps(_BASE, indent=1), "override.json": json.dumps(_OVERRIDE, indent=1)}),
        _merge_is_right,
    ),
    EvaluationTask(
        "read-binary",
        "/workspace/FORMAT.md describes the format of /workspace/picture.aimg. Write what the header of the picture "
        "says to /workspace/picture.json, as an object with the keys version, width, height and channels.",
        _image,
        _header_is_right,
    ),
    EvaluationTask(
        "ask-server",
        "Start /workspace/server.py (python3 server.py, in /workspace); it writes the port that it listens on to "
        "port.txt. Ask it for http://127.0.0.1:PORT/word and write the word that it answers to /workspace/word.txt.",
        lambda: encoded({"server.py": _SERVER}),
        _word_was_served,
    ),
)
