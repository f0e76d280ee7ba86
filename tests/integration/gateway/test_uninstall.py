"""`airlock uninstall` and `make clean` remove what is theirs; another gateway on the same engine keeps everything."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import AIRLOCK, airlock, make_home, served

REPOSITORY = Path(__file__).parents[3]


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def write(address: str, key: str) -> None:
    call = ("tool", "call", "execute", '{"command": "echo kept > file"}', "--check")
    airlock(*call, env={"AIRLOCK_ADDRESS": address, "AIRLOCK_API_KEY": key})


def test_a_gateway_is_uninstalled_once_it_is_stopped_and_the_other_one_serves_on(tmp_path: Path) -> None:
    ours, theirs = make_home(tmp_path / "ours"), make_home(tmp_path / "theirs")
    uninstall = ("uninstall", "--config", str(ours.config))
    with served(theirs) as other:
        write(other.address, theirs.key)
        with served(ours) as gateway:
            write(gateway.address, ours.key)
            refused = airlock(*uninstall, "--yes", "--json", check=False)
            assert refused.returncode == 2
            assert "running: stop it first" in json.loads(refused.stdout)["error"]
            gateway.kill()
        assert containers_of(ours.instance)
        instance, state = ours.instance, ours.config.parent / "state"
        assert airlock(*uninstall, "--json", check=False).returncode == 2  # it cannot ask

        kept = json.loads(airlock(*uninstall, "--yes", "--json", "--keep-state").stdout)
        assert len(kept["containers"]) == len(kept["volumes"]) == 1
        assert kept["state_dir"] is None
        assert (containers_of(instance), volumes_of(instance)) == ([], [])
        assert json.loads(airlock(*uninstall, "--yes", "--json").stdout)["state_dir"] == str(state)
        assert not state.exists()
        assert ours.config.exists()

        assert len(containers_of(theirs.instance)) == len(volumes_of(theirs.instance)) == 1
        read = ("tool", "call", "execute", '{"command": "cat file"}', "--check")
        reported = airlock(*read, env={"AIRLOCK_ADDRESS": other.address, "AIRLOCK_API_KEY": theirs.key})
        assert reported.stdout == "kept\n"


def test_a_gateway_is_not_uninstalled_while_another_one_of_its_database_serves(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    state = home.config.parent / "state"
    second = tmp_path / "second"
    (second / "state").mkdir(parents=True, mode=0o700)
    document = yaml.safe_load(home.config.read_text(encoding="utf-8"))
    document["tenants"]["default"]["policy"] = str(home.config.parent / "policies" / "default.yaml")
    document |= {"database_url": home.database_url, "state_dir": str(second / "state")}
    document["sandbox"] = {**(document.get("sandbox") or {}), "channel_dir": str(state / "channels")}
    (second / "airlock.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with served(home) as gateway:
        write(gateway.address, home.key)
        shutil.copy(state / "instance", second / "state" / "instance")
        refused = airlock("uninstall", "--config", str(second / "airlock.yaml"), "--yes", "--json", check=False)
        assert refused.returncode == 2
        assert "another gateway with the same database is running" in json.loads(refused.stdout)["error"]
        assert len(containers_of(home.instance)) == len(volumes_of(home.instance)) == 1
    instance = home.instance
    airlock("uninstall", "--config", str(home.config), "--yes", "--json")
    assert (containers_of(instance), volumes_of(instance)) == ([], [])


def test_nothing_is_removed_unless_the_answer_is_yes(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with served(home):
        pass
    volume = docker("volume", "create", "--label", f"airlock.instance={home.instance}")
    try:
        asked = subprocess.run(
            [*AIRLOCK, "uninstall", "--config", str(home.config)],
            input="n\n", capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert f"volume {volume}" in asked.stdout
        assert volumes_of(home.instance) == [volume]
        assert (home.config.parent / "state" / "instance").exists()
    finally:
        docker("volume", "rm", volume)


def test_clean_removes_what_its_clone_made_and_nothing_of_another_one(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "deploy").mkdir(parents=True)
    for script in ("clean", "engine"):
        shutil.copy(REPOSITORY / "deploy" / script, clone / "deploy" / script)
    (clone / ".build").mkdir()
    (clone / ".build" / "instances").write_text(f"\ntest-{tmp_path.name}-mine\n", encoding="ascii")
    base = docker("image", "inspect", "--format", "{{.Id}}", "airlock-sandbox")
    mine, theirs = f"airlock-mine-{clone.stat().st_ino}", f"airlock-theirs-{clone.stat().st_ino}"
    for image in (mine, theirs):
        docker("tag", "airlock-sandbox", image)
    (clone / ".build" / "made-images").write_text(f"{mine} {base}\n{theirs} sha256:another\n", encoding="ascii")
    made = {}
    for whose in ("mine", "theirs"):
        label = ("--label", f"airlock.instance=test-{tmp_path.name}-{whose}", "--label", "airlock.kind=workspace")
        volume = docker("volume", "create", *label)
        made[whose] = (docker("create", *label, "--volume", f"{volume}:/v", "airlock-sandbox", "true"), volume)
    try:
        subprocess.run([clone / "deploy" / "clean"], check=True, capture_output=True, timeout=120)
        left = docker("ps", "--all", "--quiet", "--no-trunc"), docker("volume", "ls", "--quiet")
        for place, name in enumerate(made["mine"]):
            assert name not in left[place].split()
        for place, name in enumerate(made["theirs"]):
            assert name in left[place].split()
        assert docker("image", "inspect", "--format", "{{.Id}}", theirs) == base
        assert not (clone / ".build").exists()
    finally:
        docker("rm", "--force", made["theirs"][0])
        docker("volume", "rm", made["theirs"][1])
        docker("rmi", theirs, mine)  # a container of another clone has the image: `clean` left its name
