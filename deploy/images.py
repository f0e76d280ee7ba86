"""Build the Docker images, each only if its inputs have changed.

    .venv/bin/python deploy/images.py runtime sandbox sandbox-slim [gateway] [--tag TAG]

`airlock images build` runs it too, also where only the wheel is installed (gateway/cli/images.py).

Uses the engine that `docker` reaches. If no registry answers, it makes the base image from the host's own apt sources
(mmdebstrap). Wheels come through the host's pip, so an index, proxy or certificate that works for .venv works here.
Prints a line for each image that it builds and nothing for one that is up to date. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTEXT = ROOT / ".build" / "images"
# The images that this clone built, a name and an id per line; deploy/clean removes them.
MADE_IMAGES = ROOT / ".build" / "made-images"
BASE = "airlock-base"
PULLED_BASE = "python:3.12-slim"
REGISTRY_ANSWERS_WITHIN_S = 20.0
DEBIAN_PACKAGES = (
    "python3,python-is-python3,python3-pip,python3-venv,ca-certificates,git,procps,"
    "curl,file,jq,less,make,patch,ripgrep,sqlite3,unzip,zip"
)

# On a base image made from apt: its packages.
_PACKAGES_LABEL = "airlock.packages"

# The inputs of each image, besides its base. A change in any of these files rebuilds the image.
INPUTS = {
    "sandbox-slim": ["Dockerfile"],
    "sandbox": ["Dockerfile", "deploy/image.lock", "deploy/tool_user_name.c"],
    "runtime": [
        "Dockerfile",
        "deploy/bundle.py",
        "deploy/sandbox.lock",
        "deploy/start_tool.c",
        "sandbox/__init__.py",
        "sandbox/engines/build.py",
        "sandbox/v1",
        "sandbox/daemon",
        "sandbox/tls",
    ],
    "gateway": [
        *("Dockerfile", "pyproject.toml", "deploy/gateway.lock"),
        *("agent", "clients/python/airlock", "sandbox", "gateway"),
    ],
}


def _say(line: str) -> None:
    print(line, flush=True)


def _record(image: str) -> None:
    """Record that this clone built an image, so that deploy/clean removes it."""
    MADE_IMAGES.parent.mkdir(parents=True, exist_ok=True)
    with MADE_IMAGES.open("a", encoding="ascii") as file:
        file.write(f"{image} {_output('docker', 'image', 'inspect', '--format', '{{.Id}}', image)}\n")


def _output(*command: str) -> str | None:
    """Return a command's output, or None if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    """Run a command in the repository quietly; on failure, show its output and exit."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nfailed (exit {done.returncode}): {' '.join(command)}")


def _pull_base() -> bool:
    """Pull the usual base image and return whether it is present; the registry must start to answer in time."""
    with subprocess.Popen(
        ["docker", "pull", PULLED_BASE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as pull:
        assert pull.stdout is not None  # noqa: S101  # PIPE above
        # The first line comes once the registry has described the image; its layers may then take any time.
        answered = bool(select.select([pull.stdout], [], [], REGISTRY_ANSWERS_WITHIN_S)[0]) and pull.stdout.readline()
        if not answered:
            pull.terminate()
        else:
            pull.stdout.read()
    return pull.returncode == 0 or _output("docker", "image", "inspect", PULLED_BASE) is not None


def _apt_sources() -> tuple[str, list[str]]:
    """Return this host's release name and the sources.list lines of its distribution, without third-party ones."""
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line
    )
    codename = release.get("VERSION_CODENAME", "").strip('"')
    listing = _output(
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
    )
    lines = [line.partition("|") for line in (listing or "").splitlines()]
    return codename, sorted({source for origin, _, source in lines if origin in {"Debian", "Ubuntu"}})


def _make_base() -> None:
    """Make a base image of this host's Debian or Ubuntu, with Python. Exits with a message if something is missing."""
    if shutil.which("mmdebstrap") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise SystemExit(
                f"no registry answers for {PULLED_BASE}, and mmdebstrap, which would replace it, is not installed.\n"
                f"Make `docker pull {PULLED_BASE}` work, or (Debian, Ubuntu) run `sudo apt-get install mmdebstrap`."
            )
        _say("changed: installing mmdebstrap with apt-get")
        _output("apt-get", "update", "-q")  # an index that fails matters only if the package is then not found
        install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", "mmdebstrap")
        _run(*install, environment={"DEBIAN_FRONTEND": "noninteractive"})
    codename, sources = _apt_sources()
    archive = CONTEXT / "base.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    _run(
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={DEBIAN_PACKAGES}",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        codename,
        str(archive),
        *sources,
    )
    labels = f"LABEL airlock.kind=image {_PACKAGES_LABEL}={DEBIAN_PACKAGES}"
    _run("docker", "import", "--change", labels, "--change", 'CMD ["/bin/sh"]', str(archive), BASE)
    archive.unlink()


def _base_is_current() -> bool:
    """Return whether the base image was pulled, or made from the packages that are listed now."""
    label = f'{{{{index .Config.Labels "airlock.kind"}}}} {{{{index .Config.Labels "{_PACKAGES_LABEL}"}}}}'
    made = _output("docker", "image", "inspect", "--format", label, BASE) or ""
    kind, _, packages = made.partition(" ")
    return kind != "image" or packages.strip() == DEBIAN_PACKAGES


def _base() -> str:
    """Return the id of the base image, which is pulled or made if necessary."""
    find = ("docker", "image", "inspect", "--format", "{{.Id}}", BASE)
    found = _output(*find)
    if found and _base_is_current():
        return found
    _say(f"changed: creating image {BASE}: pulling {PULLED_BASE}")
    if _pull_base():
        _run("docker", "tag", PULLED_BASE, BASE)
    else:
        _say(f"         no registry answers; creating {BASE} from this host's apt (half a minute)")
        _make_base()
    _record(BASE)
    return _output(*find) or ""


def _inputs_digest(image: str, base: str) -> str:
    """Return a digest of all inputs of the image."""
    digest = hashlib.sha256(base.encode())
    for name in INPUTS[image]:
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix not in {".pyc", ".pyi"}:
                digest.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _download_wheels(lock: str, into: Path) -> None:
    """Download a lock file's wheels for the base image's Python, through the host's pip. Hashes are checked."""
    probe = "import platform as p; print(p.machine(), *p.python_version_tuple()[:2])"
    target = _output("docker", "run", "--rm", "--network", "none", BASE, "python3", "-c", probe)
    if target is None:
        raise SystemExit(f"{BASE} has no working python3; remove it with `docker rmi {BASE}` and try again")
    machine, major, minor = target.split()
    platforms = [f"manylinux{tag}_{machine}" for tag in ("_2_28", "_2_26", "_2_24", "_2_17", "2014", "_2_5", "1")]
    abis = [f"cp{major}{minor}", "abi3", "none"]
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(into)
    into.mkdir(parents=True)
    _run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *(
            "--require-hashes",
            "--no-deps",
            "--only-binary=:all:",
            "--requirement",
            f"deploy/{lock}",
            "--dest",
            str(into),
        ),
        *("--implementation", "cp", "--python-version", f"{major}.{minor}"),
        *(argument for platform in platforms for argument in ("--platform", platform)),
        *(argument for abi in abis for argument in ("--abi", abi)),
    )
    shutil.copyfile(ROOT / "deploy" / lock, into / lock)


def _prepare(image: str) -> None:
    """Put the files that the image's stage copies into the build context."""
    locks = {"sandbox": "image.lock", "runtime": "sandbox.lock", "gateway": "gateway.lock"}  # in the Dockerfile's order
    if image not in locks:
        return
    for stage, lock in locks.items():
        # The classic builder runs every earlier stage too, so the files that those copy must also exist.
        if stage == image or not (CONTEXT / stage / lock).exists():
            _download_wheels(lock, CONTEXT / stage)
        if stage == image:
            break
    if image == "gateway":
        # setuptools builds in the tree and would include leftovers of an earlier build.
        shutil.rmtree(ROOT / "build", ignore_errors=True)
        wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps")
        _run(*wheel, "--no-build-isolation", "--wheel-dir", str(CONTEXT / "gateway"), ".")
        shutil.rmtree(ROOT / "build", ignore_errors=True)


def _build(image: str, name: str, inputs: str) -> None:
    proxies = [name for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ]
    _run(
        *("docker", "build", "--quiet", "--network", "host", "--target", image, "--tag", name),
        *("--build-arg", f"BASE={BASE}", "--label", f"airlock.inputs={inputs}"),
        *(argument for name in proxies for argument in ("--build-arg", name)),
        ".",
        # Without buildx there is the classic builder.
        environment={} if _output("docker", "buildx", "version") else {"DOCKER_BUILDKIT": "0"},
    )


def main(images: Sequence[str], tag: str) -> None:
    """Bring the named images up to date."""
    if shutil.which("docker") is None:
        raise SystemExit(
            "building images needs the command `docker`; install it (Debian, Ubuntu: docker.io or docker-cli)"
        )
    if _output("docker", "version") is None:
        raise SystemExit("no Docker engine answers the command `docker`; start one, or set DOCKER_HOST")
    base = _base()
    for image in images:
        name = f"airlock-{image}:{tag}"
        inputs = _inputs_digest(image, base)
        label = '{{index .Config.Labels "airlock.inputs"}}'
        if _output("docker", "image", "inspect", "--format", label, name) == inputs:
            continue
        _say(f"changed: building image {name.removesuffix(':latest')}")
        old = _output("docker", "image", "inspect", "--format", "{{.Id}}", name)
        _prepare(image)
        _build(image, name, inputs)
        _record(name.removesuffix(":latest"))
        if old is not None:
            _output("docker", "rmi", old)  # fails, as intended, while a container uses it


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("images", nargs="+", choices=[*INPUTS])
    parser.add_argument("--tag", default="latest")
    arguments = parser.parse_args()
    main(arguments.images, arguments.tag)
