"""A Pod's volumes as directories, and its containers' environment."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path

from tests.kubernetes import kinds
from tests.kubernetes.access import Access, service_account
from tests.kubernetes.store import Made, Store

# A daemon that runs as a process of this machine serves a directory of this name (local_daemon.py).
CONTENTS = "workspace"


class NotMounted(Exception):
    """A volume or a variable is not there yet; the message is that of the kubelet's event."""


class PodFiles:
    """The directories of one Pod, below one of the kubelet's."""

    def __init__(self, store: Store, access: Access, pod: Made, directory: Path) -> None:
        self._store = store
        self._access = access
        self._namespace = pod["metadata"]["namespace"]
        self._account = pod["spec"]["serviceAccountName"]
        self.directory = directory

    def mount_all(self, pod: Made) -> dict[str, Path]:
        """Return each volume's directory; NotMounted if one cannot be had yet."""
        return {volume["name"]: self._mounted(volume) for volume in pod["spec"].get("volumes", ())}

    def mounts_of(self, container: Made, volumes: Mapping[str, Path]) -> dict[str, Path]:
        """Return a container's mount paths; each is also a link in the container's root."""
        mounts = {}
        root = self.root_of(container)
        for mount in container.get("volumeMounts", ()):
            place = volumes[mount["name"]] / mount.get("subPath", "")
            if mount.get("subPath"):
                place.mkdir(parents=True, exist_ok=True)
            mounts[mount["mountPath"]] = place
            link = root / mount["mountPath"].strip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink() and not link.exists():
                link.symlink_to(place)
        return mounts

    def root_of(self, container: Made) -> Path:
        root = self.directory / "containers" / container["name"]
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        return root

    def log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _mounted(self, volume: Made) -> Path:
        place = self.directory / "volumes" / volume["name"] / CONTENTS
        if claim := volume.get("persistentVolumeClaim"):
            return self._claimed(claim["claimName"])
        if host := volume.get("hostPath"):
            return Path(host["path"])
        place.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", (volume,)):
            self._fill(place, source)
        return place

    def _claimed(self, name: str) -> Path:
        claim = self._store.find(kinds.CLAIM, self._namespace, name)
        volume = self._store.find(kinds.VOLUME, "", (claim or {}).get("spec", {}).get("volumeName", ""))
        if volume is None:
            raise NotMounted(f'persistentvolumeclaim "{name}" not found or not bound')
        place = Path(volume["spec"]["hostPath"]["path"])
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _fill(self, place: Path, source: Made) -> None:
        if "serviceAccountToken" in source:
            token = self._access.token(service_account(self._namespace, self._account))
            (place / source["serviceAccountToken"]["path"]).write_text(token)
        for field, kind in (("secret", kinds.SECRET), ("configMap", kinds.CONFIG_MAP)):
            if field in source:
                about = source[field]
                name = about.get("secretName") or about.get("name", "")
                data = self._data(kind, name, optional=about.get("optional", False))
                chosen = {item["key"]: item["path"] for item in about.get("items", ())} or {key: key for key in data}
                for key, path in chosen.items():
                    (place / path).parent.mkdir(parents=True, exist_ok=True)
                    (place / path).write_bytes(data[key])
                    (place / path).chmod(about.get("defaultMode", 0o644))

    def _data(self, kind: kinds.Kind, name: str, *, optional: bool) -> dict[str, bytes]:
        held = self._store.find(kind, self._namespace, name)
        if held is None:
            if optional:
                return {}
            raise NotMounted(f'{kind.kind.lower()} "{name}" not found')
        if kind == kinds.SECRET:
            return {key: base64.b64decode(value) for key, value in held.get("data", {}).items()}
        return {key: value.encode() for key, value in held.get("data", {}).items()}

    def environment(self, pod: Made, container: Made) -> dict[str, str]:
        """Return a container's variables, those of its Pod's fields and of secrets among them."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            for field, kind in (("secretRef", kinds.SECRET), ("configMapRef", kinds.CONFIG_MAP)):
                if field in source:
                    data = self._data(kind, source[field]["name"], optional=source[field].get("optional", False))
                    found |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
        for variable in container.get("env", ()):
            found[variable["name"]] = expanded(variable.get("value", ""), found)
            if source := variable.get("valueFrom"):
                found[variable["name"]] = self._value(pod, source)
        return found

    def _value(self, pod: Made, source: Made) -> str:
        if "fieldRef" in source:
            value: object = pod
            path = source["fieldRef"]["fieldPath"]
            keys = re.fullmatch(r"(metadata\.(?:labels|annotations))\['([^']+)'\]", path)
            for part in (*keys[1].split("."), keys[2]) if keys else path.split("."):
                value = value.get(part, "") if isinstance(value, Mapping) else ""
            return str(value)
        for field, kind in (("secretKeyRef", kinds.SECRET), ("configMapKeyRef", kinds.CONFIG_MAP)):
            if field in source:
                data = self._data(kind, source[field]["name"], optional=source[field].get("optional", False))
                return data.get(source[field]["key"], b"").decode()
        return ""


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Fill `$(NAME)` in; what is not known stays as it is."""
    return re.sub(r"\$\(([\w.-]+)\)", lambda found: variables.get(found[1], found[0]), text)
