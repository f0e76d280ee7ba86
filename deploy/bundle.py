"""Build the self-contained directory with the daemon, which is mounted into sandboxes of any image.

Run inside the base image by the interpreter that is to be bundled:

    python3 -X no_debug_ranges deploy/bundle.py --protobuf PROTOBUF.whl --source REPOSITORY --output /opt/airlock

The directory holds the loader, CPython, the shared libraries both need, a trimmed standard library, protobuf,
sandbox.v1, sandbox.daemon and sandbox.tls, and in BUILD the digest of their sources
(sandbox/engines/build.py). It is started through its own loader (the Dockerfile has the whole command line), so
the image needs no libc, Python or shell:

    /opt/airlock/lib/ld.so --library-path /opt/airlock/lib ... /opt/airlock/bin/python3 ... -m sandbox.daemon

Modules are compiled without docstrings and source: less memory in each sandbox, and nothing to be written at import.
Only the standard library is used here.
"""

from __future__ import annotations

import argparse
import py_compile
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

# What a daemon never needs: tests, interactive tools, other platforms' modules. Of ctypes it needs the compiled half
# (sandbox/daemon/supervisor/libc.py).
_LEFT_OUT_PACKAGES = frozenset(
    {
        *("__pycache__", "lib-dynload", "site-packages", "dist-packages"),  # not modules, or handled separately
        *("test", "tests", "unittest", "idlelib", "tkinter", "turtledemo", "pydoc_data", "curses"),
        *("ctypes", "dbm", "distutils", "ensurepip", "lib2to3", "msilib", "sqlite3", "venv", "wsgiref", "xmlrpc"),
    }
)
_LEFT_OUT_EXTENSIONS = re.compile(
    r"_(codecs_|crypt|ctypes_test|curses|dbm|gdbm|lsprof|multibytecodec|sqlite3|test|tkinter|uuid|xx)"
    r"|audioop|nis|ossaudiodev|readline|xx"
)

# Files of the image that a library would read by itself. A tenant's image must not influence the daemon, so each name
# is replaced, in place and at most as long, by a name under the read-only bundle that does not exist.
_LOADER_READS = {b"/etc/ld.so.preload\0": b"/opt/airlock/none\0", b"/etc/ld.so.cache\0": b"/opt/airlock/no\0"}
_OPENSSL_READS = {b"\0/usr/lib/ssl\0": b"\0/opt/airlock\0"}


def _compile_tree(files: Iterable[tuple[Path, Path]], output: Path) -> None:
    """Write each (source, path inside the bundle) as optimised bytecode that is valid without its source."""
    for source, relative in files:
        py_compile.compile(
            str(source),
            cfile=str((output / relative).with_suffix(".pyc")),
            dfile=str(relative),  # what a traceback shows
            doraise=True,
            optimize=2,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


def _modules(root: Path, within: Path) -> Iterator[tuple[Path, Path]]:
    """Yield every module below `within` that the bundle keeps, as (source, path relative to `root`)."""
    for path in sorted(within.rglob("*.py")):
        parents = path.relative_to(within).parts[:-1]
        if not (_LEFT_OUT_PACKAGES.intersection(parents) or any(part.startswith("config-") for part in parents)):
            yield path, path.relative_to(root)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.resolve(), target)
    target.chmod(0o755)


def _shared_libraries(objects: Iterable[Path]) -> dict[str, Path]:
    """Return name -> file of everything these ELF objects load, the loader included. A missing library is an error."""
    found: dict[str, Path] = {}
    for elf in objects:
        listing = subprocess.run(["ldd", str(elf)], check=True, capture_output=True, text=True).stdout
        if "not found" in listing:
            raise SystemExit(f"bundle: {elf} needs a library that this image does not have:\n{listing}")
        for match in re.finditer(r"^\s*(?:(\S+) => )?(/\S+) \(0x", listing, re.MULTILINE):
            path = Path(match[2])
            found[match[1] or path.name] = path
    return found


def _sever(binary: Path, replacements: dict[bytes, bytes]) -> None:
    """Replace names of files in `binary`. A missing name is an error: this build finds its files in another way."""
    content = binary.read_bytes()
    for old, new in replacements.items():
        if old not in content:
            raise SystemExit(f"bundle: {binary.name} does not mention {old!r}; look at how it finds its files now")
        content = content.replace(old, new.ljust(len(old), b"\0"))
    binary.write_bytes(content)


def bundle(protobuf: Path, source: Path, output: Path) -> None:
    """Fill `output`, which must not exist, from this interpreter, a protobuf wheel and the repository at `source`."""
    library = output / "lib"
    python_library = library / f"python{sys.version_info.major}.{sys.version_info.minor}"
    _copy(Path(sys.executable), output / "bin" / "python3")

    standard = Path(sysconfig.get_path("stdlib"))
    _compile_tree(_modules(standard, standard), python_library)
    for extension in sorted((standard / "lib-dynload").glob("*.so")):
        if not _LEFT_OUT_EXTENSIONS.match(extension.name):
            _copy(extension, python_library / "lib-dynload" / extension.name)

    # Next to the standard library, because an interpreter started with -I -S looks nowhere else.
    with tempfile.TemporaryDirectory() as unpacked:
        root = Path(unpacked)
        with zipfile.ZipFile(protobuf) as wheel:
            wheel.extractall(root)
        _compile_tree(_modules(root, root / "google"), python_library)
        for extension in (root / "google").rglob("*.so"):
            _copy(extension, python_library / extension.relative_to(root))
    _compile_tree([(source / "sandbox" / "__init__.py", Path("sandbox/__init__.py"))], python_library)
    for package in ("v1", "daemon", "tls"):
        _compile_tree(_modules(source, source / "sandbox" / package), python_library)

    # Computed by the gateway's own module, because the two ends compare it.
    build = runpy.run_path(str(source / "sandbox" / "engines" / "build.py"))
    digest = build["sources_digest"](source / "sandbox")
    (output / build["BUILD_FILE"]).write_text(digest + "\n", encoding="ascii")

    objects = [output / "bin" / "python3", *python_library.rglob("*.so")]
    for name, path in _shared_libraries(objects).items():
        loader = name.startswith("ld-linux") or "/" in name
        _copy(path, library / ("ld.so" if loader else name))
    _sever(library / "ld.so", _LOADER_READS)
    for libcrypto in library.glob("libcrypto.so*"):
        _sever(libcrypto, _OPENSSL_READS)


def main() -> None:
    """Parse the command line and build the bundle."""
    parser = argparse.ArgumentParser(description="Make the bundle that carries the daemon into a sandbox.")
    parser.add_argument("--protobuf", type=Path, required=True, help="the protobuf wheel for this interpreter")
    parser.add_argument("--source", type=Path, required=True, help="the repository")
    parser.add_argument("--output", type=Path, required=True, help="the directory to make")
    arguments = parser.parse_args()
    bundle(arguments.protobuf, arguments.source, arguments.output)


if __name__ == "__main__":
    main()
