"""`airlock images`: build the images that sandboxes need, from what this installation carries."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.command import Cli, Commands
from gateway.cli.terminal import fail

_DISTRIBUTION = "airlock-agent-gateway"
_SCRIPT = Path("deploy", "images.py")
# Where the wheel has what a checkout has at its top (data-files in pyproject.toml).
_SHARED = Path("share", "airlock")

app = Commands(help="The images that sandboxes need.")


class Image(StrEnum):
    """The images that can be built without a checkout."""

    runtime = "runtime"
    sandbox = "sandbox"
    slim = "sandbox-slim"


Images = Annotated[
    list[Image] | None, typer.Argument(help="By default runtime and sandbox, which every gateway needs.")
]


@app.command()
async def build(
    cli: Cli,
    images: Images = None,
    *,
    tag: Annotated[str, typer.Option(help="Tag of the images: airlock-sandbox:TAG.")] = "latest",
) -> None:
    """Build images that are missing or older than this installation, with the command `docker`.

    The base is python:3.12-slim, pulled; if no registry answers, it is made from this host's apt sources, which takes
    root and mmdebstrap on Debian or Ubuntu. Packages come through pip and apt-get, so those must reach an index and a
    mirror. Set DOCKER_HOST for another engine.
    """
    wanted = images or [Image.runtime, Image.sandbox]
    with _sources() as root:
        command = [sys.executable, str(root / _SCRIPT), *wanted, "--tag", tag]
        # Its lines go to stderr: stdout is for the result.
        building = await asyncio.create_subprocess_exec(*command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        code = await building.wait()
    if code != 0:
        fail("the images were not built; the lines above say why")
    names = [f"airlock-{image}" if tag == "latest" else f"airlock-{image}:{tag}" for image in wanted]
    cli.show({"images": names}, f"up to date: {', '.join(names)}")


@contextmanager
def _sources() -> Iterator[Path]:
    """Yield the directory that a build starts from: the checkout, or one made of the installed files."""
    import gateway
    import sandbox

    checkout = Path(gateway.__file__).parents[1]
    if (checkout / _SCRIPT).is_file():
        yield checkout
        return
    shared = _shared_files()
    with tempfile.TemporaryDirectory(prefix="airlock-images-") as directory:
        root = Path(directory)
        shutil.copytree(shared, root, dirs_exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(sandbox.__file__).parent, root / "sandbox", ignore=ignored)
        yield root


def _shared_files() -> Path:
    """Return the directory of the wheel's files that are no packages."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        installed = files(_DISTRIBUTION) or []
    except PackageNotFoundError:
        installed = []
    script = next((file for file in installed if file.match(str(_SHARED / _SCRIPT))), None)
    if script is None:
        fail(f"the files that images are built from are missing; install {_DISTRIBUTION} again, with pip")
    return Path(str(script.locate())).resolve().parents[len(_SCRIPT.parts) - 1]
