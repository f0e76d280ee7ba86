"""Images by name: which a list allows, and which name stands for one image and no other.

A name is compared whole, as the engine reads it: `python` is docker.io/library/python, in a name and in a glob alike.
In a glob `*` stops at a slash and `**` does not; without a tag it is about every tag and every digest. A tag beside a
digest says nothing, for the engine goes by the digest: only a glob without a tag, or with that digest, matches it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

LIMIT_CHARS = 512
_HUB = "docker.io"
_SHOWN = 10
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(
    r"((?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    rf"(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@({_DIGEST.pattern}))?"
)
_GLOB = re.compile(rf"((?:[A-Za-z0-9._:*-]+/)*[A-Za-z0-9._*-]+)(?::([^/@]*[^/@:]))?(?:@({_DIGEST.pattern}))?")
# The engine takes the first digits of an id for a name: such a name may be that of any image.
_ID_DIGITS = re.compile(r"[0-9a-f]{1,64}")


class ImageName(NamedTuple):
    """A name in its parts. `repository` is "" for an id; `tag` is "" beside a digest, which names one for good."""

    repository: str
    tag: str
    digest: str


@lru_cache(maxsize=4096)
def read_image(name: str) -> ImageName:
    """Read a name; ValueError for what is none."""
    if len(name) <= LIMIT_CHARS and _DIGEST.fullmatch(name):
        return ImageName("", "", name)
    found = _NAME.fullmatch(name) if len(name) <= LIMIT_CHARS else None
    if found is None:
        raise ValueError(
            f"{name[:LIMIT_CHARS]!r} is not the name of an image; write it as python:3.12-slim, "
            "registry.example.com/team/tools:1, or NAME@sha256: and 64 hexadecimal digits"
        )
    repository, tag, digest = found.groups()
    return ImageName(_whole(repository), "" if digest else tag or "latest", digest or "")


class ImageGlob(NamedTuple):
    """A compiled glob: `tag` is None where it is about all of them, `digest` "" where it names none."""

    repository: re.Pattern[str]
    tag: re.Pattern[str] | None
    digest: str

    def matches(self, image: ImageName) -> bool:
        if self.digest:
            fits = image.digest == self.digest
        else:
            fits = self.tag is None or (not image.digest and self.tag.fullmatch(image.tag) is not None)
        return fits and self.repository.fullmatch(image.repository) is not None


@lru_cache(maxsize=4096)
def compile_image_glob(text: str) -> ImageGlob:
    """Compile a glob. Raises ValueError that says what is wrong and what is right."""
    if _DIGEST.fullmatch(text):
        return ImageGlob(re.compile(""), None, text)
    found = _GLOB.fullmatch(text) if len(text) <= LIMIT_CHARS else None
    if found is None or any("**" in part and part != "**" for part in found[1].split("/")):
        raise ValueError(
            f"{text[:LIMIT_CHARS]!r} is not a glob of images; write it as python, python:3.12*, "
            "registry.example.com/team/** or NAME@sha256: and 64 hexadecimal digits"
        )
    repository, tag, digest = found.groups()
    # An id has no repository: only "**" is about those, too.
    expression = ".*" if repository == "**" else _expression(_whole(repository))
    of_tag = re.compile(_expression(tag)) if tag and not digest else None
    return ImageGlob(re.compile(expression), of_tag, digest or "")


@dataclass(frozen=True)
class ImageRule:
    """Which images may be used: one that a glob of `images` matches, all where it is None; with a digest if so asked.

    `written_in` is where an operator finds the rule, for the words of a refusal.
    """

    images: Sequence[str] | None = None
    require_digest: bool = False
    written_in: str = "policy's sandbox section"

    def refusal(self, image: str) -> str | None:
        """Return why an image may not be used and how to fix that; None for one that may."""
        try:
            name = read_image(image)
        except ValueError as error:
            return f"image {error}"
        if self.images is not None:
            rest = len(self.images) - _SHOWN
            allowed = ", ".join(self.images[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
            if name.tag == "latest" and _ID_DIGITS.fullmatch(image):
                return (
                    f"image {image!r} may be the beginning of any image's id, and `images` in the {self.written_in} "
                    f"allows {allowed} only: write {image}:latest for the name"
                )
            if not any(compile_image_glob(glob).matches(name) for glob in self.images):
                return (
                    f"image {image!r} is not one that `images` in the {self.written_in} allows, which are: {allowed}. "
                    "Use one of these, or have the operator add it there"
                )
        if self.require_digest and not name.digest:
            return (
                f"image {image!r} has no digest, and `require_digest` in the {self.written_in} asks for one: write "
                f"NAME@sha256:..., as `docker image inspect --format '{{{{.RepoDigests}}}}' {image}` tells it"
            )
        return None


ANY_IMAGE = ImageRule()


def _whole(repository: str) -> str:
    """Return a repository, or a glob of some, with the registry that the engine takes where none is named."""
    first, slash, rest = repository.partition("/")
    if first == "**":
        return repository
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _HUB, repository
    elif first == "index.docker.io":
        first = _HUB
    return f"{first}/library/{rest}" if first == _HUB and "/" not in rest and rest != "**" else f"{first}/{rest}"


def _expression(glob: str) -> str:
    return re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
