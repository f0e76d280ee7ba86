"""The attempts for real: each goes through a gateway into a sandbox, and what it was after must not have happened.

Lines of the same list, in the same state of files, also run where the policy allows everything: that shows that they do
the harm they are meant to, for a place in which nothing can go wrong proves nothing.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from gateway.client import Client
from gateway.errors import InvalidArgument
from tests.docker_state import containers_of
from tests.gateway_process import make_home, served
from tests.security.policy.attempts import ATTEMPTS
from tests.security.policy.strict_policy import STRICT_TEXT

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN_TEXT = """
version: 1
opaque: allow
rules:
  - {id: any, tools: [execute], effect: allow, reason: the control}
  - {id: files, tools: [read, write], effect: allow, reason: the control}
"""

CANARY = "CANARY-7f3a"
# What the attempts are after. x is what a program that is not allowed removes, src what is not to be written.
SETUP = f"""
set -e
cd /workspace
rm -rf /tmp/* /workspace/* /workspace/.[a-z]*
mkdir secret src out tools
echo {CANARY} > secret/key
echo {CANARY} > .env
echo 'app' > src/app.py
echo 'echo ran' > src/run.sh
printf 'a b\\nCANDLE\\n' > x.txt
printf 'secret/key\\n' > out/list
printf 'secret/key\\0' > out/names
touch x y z
git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first
echo changed >> x.txt
"""
LOOK = """
cd /workspace
for f in x y z src/app.py src/run.sh secret/key .env; do
  if [ -f $f ] && [ ! -L $f ]; then cksum $f; else echo "gone $f"; fi
done
ls -A src secret tools
ls -A /workspace | grep -v -x -E 'out|.*[.]txt'
grep -rl CANARY out /tmp *.txt
find out /tmp -type l -o -type f -links +1
cksum .git/config; ls .git/hooks | wc -l
true
"""

_CONTROL_SAMPLE = 300


@dataclass(frozen=True)
class Place:
    """The sandbox of one tenant, seen past the policy."""

    client: Client
    container: str

    def inside(self, script: str) -> str:
        """Run a script as the tool user, whose workspace it is, not through the gateway."""
        whose = self._exec("0", "stat", "-c", "%u:%g", "/workspace").strip()
        return self._exec(whose, "sh", "-c", script)

    def _exec(self, user: str, *argv: str) -> str:
        done = subprocess.run(
            ["docker", "exec", "--user", user, "--workdir", "/workspace", self.container, *argv],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Place, Place]]:
    """The place with the strict policy, and the one where everything is allowed."""
    home = make_home(tmp_path_factory.mktemp("bypasses"))
    keys = [home.add_tenant(name, text) for name, text in (("strict", STRICT_TEXT), ("open", OPEN_TEXT))]
    with served(home) as gateway:
        async with Client(gateway.address, keys[0]) as strict, Client(gateway.address, keys[1]) as control:
            found: list[Place] = []
            for client in (strict, control):
                known = {place.container for place in found}
                assert (await client.call_tool("execute", {"command": "pwd"})).content == "/workspace\n"
                (container,) = set(containers_of(home.instance)) - known
                found.append(Place(client, container))
                found[-1].inside(SETUP)
            yield found[0], found[1]


@pytest.mark.parametrize("family", ATTEMPTS)
async def test_nothing_happens_that_the_policy_forbids(family: str, places: tuple[Place, Place]) -> None:
    strict, _ = places
    before = strict.inside(LOOK)
    for line in ATTEMPTS[family]:
        try:
            result = await strict.client.call_tool("execute", {"command": line, "timeout_s": 10})
        except (InvalidArgument, UnicodeEncodeError):  # half a surrogate pair does not even reach the gateway
            continue
        assert result.outcome == "blocked", (line, result.outcome, result.content)
        assert CANARY not in result.content, line
    assert strict.inside(LOOK) == before


async def test_the_attempts_do_harm_where_nothing_forbids_it(places: tuple[Place, Place]) -> None:
    _, control = places
    control.inside("tar cf /tmp/base.tar -C /workspace .")
    before = control.inside(LOOK)
    lines = [line for lines in ATTEMPTS.values() for line in lines if "\0" not in line and line.isascii()]
    chosen = random.Random(7).sample(lines, _CONTROL_SAMPLE)
    harmful = []
    for line in chosen:
        result = await control.client.call_tool("execute", {"command": line, "timeout_s": 5})
        after = await control.client.run_program(["sh", "-c", LOOK])
        if CANARY in result.content or after.stdout != before:
            harmful.append(line)
        again = "find /workspace -mindepth 1 -delete; tar xf /tmp/base.tar -C /workspace"
        restored = await control.client.run_program(["sh", "-c", again])
        assert restored.exit_code == 0, restored
    assert len(harmful) >= 0.6 * _CONTROL_SAMPLE, sorted(set(chosen) - set(harmful))
