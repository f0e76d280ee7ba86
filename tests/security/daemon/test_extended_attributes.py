"""Extended attributes where the engine does not limit the files of a tmpfs: none is set, and programs go on working."""

from __future__ import annotations

import os

import pytest

from sandbox.v1 import channel_pb2 as wire
from tests.security.daemon.daemon_container import Client
from tests.security.daemon.test_tool_filter import tried


@pytest.fixture(scope="module")
def options() -> tuple[str, ...]:
    return ("--extended-attributes", "0")


ACL = """
entries = [(1, 6, -1), (2, 7, 1234), (4, 4, -1), (16, 7, -1), (32, 4, -1)]
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)
"""


def test_no_attribute_is_set_on_any_file_and_no_acl_either(client: Client) -> None:
    body = (
        ACL
        + """
for directory in ('/tmp', '/dev/shm', '/workspace'):
    path = directory + '/attributes'
    with open(path, 'w') as file:
        for name, value in (('user.a', b'x'), ('system.posix_acl_access', acl)):
            print(result(lambda: os.setxattr(path, name, value)))
            print(result(lambda: os.setxattr(path, name, value, follow_symlinks=False)))
            print(result(lambda: os.setxattr(file.fileno(), name, value)))
    print(result(lambda: os.setxattr(directory + '/none', 'user.a', b'x')))
    assert os.listxattr(path) == []
    os.unlink(path)
"""
    )
    lines = tried(client, body)
    assert (len(lines), set(lines)) == (21, {"ENOTSUP"})


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="has the numbers of x86-64: run on such a machine")
def test_no_other_number_of_the_calls_gets_around_the_filter(client: Client) -> None:
    body = """
X32 = 0x40000000
for number in (188, 189, 190, 197, 198, 199, 463, 466):
    print(call(number, 0, 0, 0, 0, 0, 0), call(X32 | number, 0, 0, 0, 0, 0, 0))
"""
    assert set(tried(client, body)) == {"ENOTSUP ENOTSUP"}


def test_the_posture_shows_that_tool_code_was_refused(client: Client) -> None:
    assert client.call(hello=wire.HelloRequest(protocol_version=1)).hello.posture.extended_attributes_refused


PROGRAMS = """
set -e
cd /workspace; export HOME=/workspace/home; mkdir -p home tree/below out with
echo a >tree/a; chmod 640 tree/a; ln -s a tree/link; echo b >tree/below/b
cp -a tree copy; cp -a tree /tmp/copy; mv /tmp/copy moved; diff -r tree moved
install -m 755 tree/a installed; sed -i s/a/c/ copy/a
tar -cf tree.tar tree; tar -xpf tree.tar -C out; diff -r tree out/tree
tar --xattrs --acls -cf with.tar tree; tar --xattrs --acls -xpf with.tar -C with 2>with.err; diff -r tree with/tree
python3 -c "import shutil; shutil.copytree('tree', 'copied'); shutil.move('copied', '/tmp/moved')"
git init -q project; cd project; git config user.name a; git config user.email a@example.com
cp ../tree/a .; git add a; git commit -qm one; git clone -q . ../clone; git worktree add -q ../other; cd ..
mkdir -p deb/DEBIAN deb/usr; echo x >deb/usr/x
printf 'Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: d\n' >deb/DEBIAN/control
dpkg-deb --build deb x.deb; dpkg-deb -x x.deb unpacked; diff -r deb/usr unpacked/usr
echo "from setuptools import setup; setup(name='made', version='1', py_modules=['made'])" >setup.py; echo >made.py
python3 -m pip install -q --no-build-isolation --no-deps --no-index --target site . 2>pip.err; test -f site/made.py
echo all >&2
"""


def test_programs_that_copy_and_unpack_go_on_as_on_a_file_system_without_attributes(client: Client) -> None:
    reply = client.execute(PROGRAMS, timeout_ms=60_000)
    said = b"".join(piece.data for piece in reply.output).decode()
    assert (reply.outcome, reply.exit_code) == (wire.OUTCOME_EXITED, 0), said
    assert [line for line in said.splitlines() if "supported" in line] == []
