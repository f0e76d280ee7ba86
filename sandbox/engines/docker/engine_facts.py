"""What an engine says of itself, for the operator."""

from dataclasses import dataclass

from sandbox.engines.docker.docker_requests import Client


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself; `images` are the names, without tags, of what it has."""

    version: str
    api_version: str
    storage_driver: str
    seccomp: bool
    runtimes: frozenset[str]
    images: frozenset[str]


def describe(client: Client) -> EngineFacts:
    """Return the facts of an engine."""
    info, version = client.info(), client.version()
    return EngineFacts(
        version=version["Version"],
        api_version=version["ApiVersion"],
        storage_driver=info["Driver"],
        seccomp=any("seccomp" in option for option in info.get("SecurityOptions") or ()),
        runtimes=frozenset(info.get("Runtimes") or ()),
        images=frozenset(tag.rpartition(":")[0] for image in client.images() for tag in image["RepoTags"] or ()),
    )
