"""The package index of the demo and the tests, with real pip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from examples.package_index import PackageIndex, greeting_wheel


def pip_install(index: PackageIndex, requirement: str, target: Path) -> subprocess.CompletedProcess[str]:
    # Without the machine's own index, wheels, proxies and constraints.
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("PIP_")}
    command = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--proxy", "", "install")
    options = ("--no-cache-dir", "--retries", "0", "--index-url", index.url, "--target", str(target))
    return subprocess.run(
        [*command, *options, requirement],
        env={**environment, "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pip_installs_a_wheel_from_the_index_and_one_that_it_lacks_is_not_found(tmp_path: Path) -> None:
    with PackageIndex(greeting_wheel()) as index:
        done = pip_install(index, "Airlock_Greeting==1.0", tmp_path)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(index.url + "airlock-farewell/")
    assert done.returncode == 0, done.stderr
    said = subprocess.check_output([tmp_path / "bin" / "greet"], env={"PYTHONPATH": str(tmp_path)}, text=True)
    assert said == "well met\n"
    assert [(seen.method, seen.target) for seen in index.requests] == [
        ("GET", "/simple/airlock-greeting/"),
        ("GET", "/files/airlock_greeting-1.0-py3-none-any.whl"),
        ("GET", "/simple/airlock-farewell/"),
    ]
    assert [seen.headers["user-agent"].partition("/")[0] for seen in index.requests] == ["pip", "pip", "Python-urllib"]


@pytest.mark.parametrize("page", ["", "airlock-greeting/"])
def test_a_page_is_html_unless_the_client_takes_json(page: str) -> None:
    wheel = greeting_wheel()
    with PackageIndex(wheel) as index:
        with urllib.request.urlopen(index.url + page) as html:
            assert html.headers["Content-Type"] == "text/html"
            text = html.read().decode()
        wants = urllib.request.Request(index.url + page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
        with urllib.request.urlopen(wants) as answer:
            content = json.load(answer)
    if page:
        assert f"#sha256={wheel.sha256}" in text
        assert content["files"][0]["hashes"] == {"sha256": wheel.sha256}
    else:
        assert 'href="/simple/airlock-greeting/"' in text
        assert content["projects"] == [{"name": "airlock-greeting"}]


def test_the_index_ends_with_its_block() -> None:
    with PackageIndex() as index:
        url = index.url
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)
