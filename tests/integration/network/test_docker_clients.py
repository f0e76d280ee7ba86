"""Programs that fetch things, in a real sandbox: each works through the door with nothing else configured.

The hosts have names, which only the gateway's machine knows: no program takes them for servers of the sandbox itself.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from gateway.client import Client
from tests.gateway_process import make_home, served
from tests.integration.network.client_site import CONTENT, Site, site
from tests.integration.sandbox.live_engine import instance_id
from tests.own_files import needs_own_files, seeing

pytestmark = needs_own_files

APT = """
set -e
mkdir -p lists/partial cache/archives/partial
echo "deb [trusted=yes] {url} ./" > sources.list
at="-q -o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists=$PWD/lists -o Dir::Cache=$PWD/cache -o Acquire::Retries=0"
apt-get $at -o APT::Update::Error-Mode=any update
apt-get $at download airlock-hello
dpkg-deb -x airlock-hello_1.0_all.deb .
cat usr/share/hello.txt
"""
NPM = """
set -e
echo '{{"name": "x", "version": "1.0.0"}}' > package.json
export HOME=$PWD PATH=$PATH:/opt/clients/bin
node /opt/clients/npm/bin/npm-cli.js install --fetch-retries=0 --no-audit --registry {url} airlock-hello
cat node_modules/airlock-hello/hello.txt
"""
HTTPX = "import httpx; r = httpx.get('{url}/hello.txt'); r.raise_for_status(); print(r.text)"
FETCH = "fetch('{url}/hello.txt').then(r => r.ok ? r.text() : Promise.reject(r)).then(console.log)"
GO = """\
package main

import (
	"io"
	"log"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	if answer.StatusCode != 200 {
		log.Fatal(answer.Status)
	}
	io.Copy(os.Stdout, answer.Body)
}
"""
COMMANDS = {
    "apt": APT,
    "fetch": f'/opt/clients/node24 -e "{FETCH}"',
    "go": "/opt/clients/get {url}/hello.txt",
    "httpx": f'PYTHONPATH=/opt/clients/python python3 -c "{HTTPX}"',
    "npm": NPM,
    "wget": "wget -q -O - {url}/hello.txt",
}
CLIENTS = [pytest.param(one, marks=pytest.mark.full if one in ("fetch", "go") else ()) for one in COMMANDS]
KEPT = Path(__file__).parents[3] / ".build" / "tests"


def _httpx(_directory: Path) -> Mapping[str, Path]:
    names = ("httpx", "httpcore", "h11", "certifi", "idna", "anyio", "sniffio", "typing_extensions")
    found = [Path(spec.origin) for name in names if (spec := importlib.util.find_spec(name)) and spec.origin]
    return {f"python/{path.name}": path for one in found for path in [one.parent if one.stem == "__init__" else one]}


def _npm(_directory: Path) -> Mapping[str, Path]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm: apt-get install nodejs npm")
    return {"bin/node": Path(node), "npm": Path(npm).resolve().parents[1]}


def _node24(_directory: Path) -> Mapping[str, Path]:
    """Return the oldest Node whose fetch knows a proxy, from its npm package; kept in .build."""
    node = KEPT / "node24"
    if not node.exists():
        if shutil.which("npm") is None:
            pytest.skip("needs npm to fetch Node 24, or Node 24 as .build/tests/node24: apt-get install npm")
        package = f"node-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}@24"
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as at:
            fetch = f"npm pack --silent {package} && tar -xzf *.tgz package/bin/node"
            subprocess.run(["sh", "-c", fetch], cwd=at, check=True, capture_output=True)
            (Path(at) / "package" / "bin" / "node").replace(node)
    return {"node24": node}


def _go(directory: Path) -> Mapping[str, Path]:
    if shutil.which("go") is None:
        pytest.skip("needs Go: apt-get install golang-go")
    (directory / "get.go").write_text(GO)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    subprocess.run(["go", "build", "-o", "get", "get.go"], cwd=directory, env=environment, check=True)
    return {"get": directory / "get"}


PARTS: Mapping[str, Callable[[Path], Mapping[str, Path]]] = {"fetch": _node24, "go": _go, "httpx": _httpx, "npm": _npm}
"""What a client needs in the sandbox that the default image has not, by its path under /opt/clients."""


@contextmanager
def image_with(name: str, clients: Mapping[str, Path]) -> Iterator[None]:
    """Have an image until the block ends: the default one with these files and directories under /opt/clients."""
    dockerfile = f"FROM airlock-sandbox\nLABEL test={name}\nCOPY clients /opt/clients\n".encode()
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w", dereference=True) as archive:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(dockerfile)
        archive.addfile(entry, io.BytesIO(dockerfile))
        for path, source in clients.items():
            archive.add(source, f"clients/{path}")
    subprocess.run(
        ["docker", "build", "-q", "-t", name, "-"], input=context.getvalue(), check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)


@dataclass(frozen=True)
class Sites:
    """Two that are allowed, of which the second has its TLS opened, and one that is not."""

    plain: Site
    opened: Site
    elsewhere: Site


@dataclass(frozen=True)
class Clients:
    """A gateway with a tenant for each client; `images` are those of the tenants, which a test makes."""

    address: str
    sites: Sites
    keys: Mapping[str, str]
    images: Mapping[str, str]
    made: ExitStack


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    at, authority = tmp_path_factory.mktemp("clients"), trustme.CA()
    home = make_home(at)
    authority.cert_pem.write_to_path(at / "ca.pem")
    images = dict.fromkeys(COMMANDS, "airlock-sandbox") | {one: f"airlock-{one}-{instance_id()}" for one in PARTS}
    with ExitStack() as stack:
        sites = Sites(
            stack.enter_context(site(at / "plain", "plain.example")),
            stack.enter_context(site(at / "opened", "opened.example", authority)),
            stack.enter_context(site(at / "elsewhere", "elsewhere.example")),
        )
        made = stack.enter_context(ExitStack())
        (at / "hosts").write_text(
            "".join(f"127.0.0.1 {host}\n" for host in ("localhost", *(one.host for one in vars(sites).values())))
        )
        keys = {}
        for name, image in images.items():
            keys[name] = home.add_tenant(name, _document(_rules(sites), enforcement="kernel", sandbox={"image": image}))
        named = [_connect(f"at-{one.port}", "127.0.0.1", one) for one in vars(sites).values()]
        (at / "policies" / "operator.yaml").write_text(_document(named))
        home.configure(operator_policy="policies/operator.yaml", network={"ca_file": "ca.pem"})
        gateway = stack.enter_context(served(home, within=seeing({"/etc/hosts": at / "hosts"})))
        yield Clients(gateway.address, sites, keys, images, made)


def _document(rules: list[dict[str, object]], **sections: object) -> str:
    return json.dumps(
        {"version": 1, "rules": [{**rule, "effect": "allow", "reason": "x"} for rule in rules], **sections}
    )


def _rules(sites: Sites) -> list[dict[str, object]]:
    return [
        {"id": "commands", "tools": ["execute"]},
        # The certificate authority is elsewhere in the workspace, and can be read all the same.
        {"id": "files", "tools": ["read", "write"], "paths": ["/workspace/src/**", "/tmp/**"]},
        _connect("plain", sites.plain.host, sites.plain),
        {**_connect("opened", sites.opened.host, sites.opened), "methods": ["GET"]},
    ]


def _connect(name: str, host: str, to: Site) -> dict[str, object]:
    return {"id": name, "tools": ["connect"], "hosts": [f"{host}:{to.port}"]}


@pytest.mark.parametrize("name", CLIENTS)
async def test_it_reaches_the_hosts_that_are_allowed_and_no_other(clients: Clients, tmp_path: Path, name: str) -> None:
    if name in PARTS:
        clients.made.enter_context(image_with(clients.images[name], PARTS[name](tmp_path)))
    sites = clients.sites
    async with Client(clients.address, clients.keys[name]) as client:
        await client.write_file("t", "/workspace/src/.keep", b"")

        async def fetch(site: Site) -> tuple[int | None, list[str], str]:
            command = f"mkdir src/{site.host} && cd src/{site.host} || exit 1\n{COMMANDS[name].format(url=site.url)}"
            done = await client.call_tool("execute", {"command": command, "timeout_s": 100}, thread="t")
            return done.exit_code, done.content.splitlines(), done.note

        for site in (sites.plain, sites.opened):
            site.seen.clear()
            code, said, note = await fetch(site)
            assert (code, said[-1:]) == (0, [CONTENT]), (said, note)
            assert site.seen
        code, said, note = await fetch(sites.elsewhere)
        assert code, (said, note)
        assert f"network refused: {sites.elsewhere.host}:{sites.elsewhere.port}" in note
        assert sites.elsewhere.seen == []
