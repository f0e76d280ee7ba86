"""`deploy/run-tests frameworks [NAME...] [--write]`: run the tests of each framework against one real gateway.

A framework that is not installed is named as skipped. The counts go to .build/frameworks/results.json; a row of the
table in docs/integrations.md that does not match them fails the run, unless `--write` corrects it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from agent.models.scripted_model_server import ScriptedModelServer
from tests.docker_state import containers_of
from tests.frameworks import table
from tests.frameworks.frameworks import FRAMEWORKS, ROOT, Framework
from tests.gateway_process import make_home, served

_STRICT = Path(__file__).with_name("strict.yaml")
_STREAMING = Path(__file__).with_name("streaming.yaml")
_MYPY = Path(__file__).with_name("mypy.ini")
_LIMIT_S = 1800


async def _run(framework: Framework, env: Mapping[str, str], pytest_options: list[str]) -> bool:
    """Run its type check and its tests, and return whether all passed."""
    junit = framework.environment / "junit.xml"
    junit.unlink(missing_ok=True)
    async with ScriptedModelServer(framework.turns) as model:
        openai = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "scripted"}
        adapter = (ROOT / "gateway" / "integrations").glob(f"{framework.adapter.removesuffix('.py')}*.py")
        types = ("--config-file", _MYPY, "--cache-dir", framework.environment / "mypy", *adapter)
        typed = await _exits_0(framework, env, "mypy", *types)
        passed = await _exits_0(
            framework,
            {**env, **openai},
            "pytest",
            "--rootdir",
            ROOT,
            "--junitxml",
            junit,
            *pytest_options,
            framework.tests,
        )
        for failure in model.failures:
            print(f"the scripted model: {failure}")
        return typed and passed and not model.failures


async def _exits_0(framework: Framework, env: Mapping[str, str], module: str, *arguments: str | Path) -> bool:
    process = await asyncio.create_subprocess_exec(framework.python, "-m", module, *arguments, cwd=ROOT, env=env)
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await process.wait() == 0
    except TimeoutError:
        process.kill()
        await process.wait()
        print(f"{framework.name}: {module} did not end within {_LIMIT_S} s")
        return False


def _run_all(chosen: list[Framework], pytest_options: list[str]) -> tuple[dict[str, table.Result], list[str]]:
    """Return what was counted, and which frameworks failed."""
    results, failed = {}, []
    with tempfile.TemporaryDirectory() as directory:
        home = make_home(Path(directory) / "frameworks")
        strict = home.add_tenant("strict", _STRICT.read_text(encoding="utf-8"))
        streaming = home.add_tenant("streaming", _STREAMING.read_text(encoding="utf-8"))
        with served(home) as gateway:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRLOCK_", "OPENAI_"))}
            given = {
                "AIRLOCK_ADDRESS": gateway.address,
                "AIRLOCK_API_KEY": home.key,
                "AIRLOCK_STRICT_API_KEY": strict,
                "AIRLOCK_STREAMING_API_KEY": streaming,
                "AIRLOCK_STREAMING_APPROVER_API_KEY": home.make_key("streaming", "approve"),
                "AIRLOCK_APPROVER_API_KEY": home.make_key("strict", "approve"),
            }
            for framework in chosen:
                print(f"\n{framework.name}", flush=True)
                if not asyncio.run(_run(framework, {**kept, **given, "NO_PROXY": "127.0.0.1"}, pytest_options)):
                    failed.append(framework.name)
                if (junit := framework.environment / "junit.xml").exists():
                    results[framework.name] = table.counted(framework, junit)
        if left := containers_of(home.instance):
            failed.append(f"the gateway left containers: {left}")
    return results, failed


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="deploy/run-tests frameworks", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the frameworks (default: all)")
    parser.add_argument("--write", action="store_true", help="write the table of docs/integrations.md")
    parser.add_argument("-k", default="", help="as pytest's: only some tests; nothing is counted")
    asked = parser.parse_args()
    by_name = {framework.name: framework for framework in FRAMEWORKS}
    if unknown := set(asked.names) - set(by_name):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    wanted = [by_name[name] for name in asked.names or by_name]
    installed = [framework for framework in wanted if (framework.environment / "stamp").exists()]
    for framework in wanted:
        if framework not in installed:
            print(f"SKIPPED {framework.name}: not installed; deploy/frameworks/install {framework.name} installs it")
    if not installed:
        return 0

    results, failed = _run_all(installed, ["-k", asked.k] if asked.k else [])
    print()
    for name, result in results.items():
        print(f"{name} {result.version}: suite {result.suite}, our tests {result.tests}")
    if not asked.k:
        table.store(results)
        if asked.write:
            table.write(results)
        failed += [
            f"docs/integrations.md has another row for {name}: deploy/run-tests frameworks {name} --write"
            for name in table.drift(results)
        ]
    for failure in failed:
        print(f"FAILED {failure}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
