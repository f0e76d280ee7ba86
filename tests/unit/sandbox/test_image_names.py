"""Images by name: what a list allows is what the engine would take, and nothing that only looks like it."""

from __future__ import annotations

import pytest

from gateway.policy import PolicyError, load_policy
from gateway.policy.judge import Policy
from sandbox.image_names import ImageRule, compile_image_glob, read_image

DIGEST = "sha256:" + "a" * 64


def sandbox(**settings: object) -> str:
    return f"version: 1\nsandbox: {settings}\n".replace("'", '"').replace("True", "true")


def effective(own: str, above: str) -> Policy:
    return Policy(load_policy(own, "own").tenant_document, load_policy(above, "above").tenant_document)


@pytest.mark.parametrize(
    "glob, image",
    [
        ("python", "python:3.12"),
        ("python", "docker.io/library/python"),
        ("docker.io/python", "index.docker.io/library/python:3"),
        ("python", f"python@{DIGEST}"),
        ("python:3.*", "python:3.12-slim"),
        (f"python@{DIGEST}", f"python:3@{DIGEST}"),
        ("airlock-*", "airlock-sandbox"),
        ("*/tools", "acme/tools"),
        ("localhost:5000/*", "localhost:5000/x"),
        ("registry.example.com/team/**", "registry.example.com/team/a/b:1"),
        ("docker.io/**", "acme/tools"),
        ("**", "registry.example.com/x"),
        ("**", DIGEST),
        (DIGEST, DIGEST),
    ],
)
def test_a_name_is_compared_as_the_engine_reads_it(glob: str, image: str) -> None:
    assert ImageRule([glob]).refusal(image) is None


@pytest.mark.parametrize(
    "glob, image",
    [
        ("python", "acme/python"),
        ("python", "evil.example/library/python"),
        ("python:3.12", "python"),
        ("python:3.12", f"python:3.12@{DIGEST}"),  # the engine goes by the digest, which may be of any tag
        (f"python@{DIGEST}", "python"),
        (f"python@{DIGEST}", f"other@{DIGEST}"),
        ("airlock-*", "airlock-x/y"),
        ("*", "acme/tools"),
        ("*", DIGEST),
        ("*", "cafe"),  # the beginning of some image's id
        ("registry.example.com/*", "registry.example.com/a/b"),
        ("registry.example.com/*", "registryXexample.com/a"),
    ],
)
def test_what_only_looks_like_an_allowed_name_is_refused(glob: str, image: str) -> None:
    refusal = ImageRule([glob]).refusal(image)
    assert refusal is not None
    assert repr(image) in refusal
    assert glob in refusal
    assert "policy's sandbox section" in refusal


def test_a_name_without_its_digest_is_refused_where_digests_are_asked_for() -> None:
    rule = ImageRule(require_digest=True, written_in="configuration's sandbox section")
    refusal = rule.refusal("python:3.12")
    assert refusal is not None
    assert "'python:3.12' has no digest" in refusal
    assert "docker image inspect" in refusal
    assert rule.refusal(f"python:3.12@{DIGEST}") is None
    assert rule.refusal(DIGEST) is None


@pytest.mark.parametrize("name", ["", "No Such", "a//b", "/a", "a:", "a@sha256:1", "a@", "-a", "a b", "a\n", "x" * 600])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an image"):
        read_image(name)


@pytest.mark.parametrize("glob", ["", "a b", "a//b", "a**", "x@sha256:12", "a:", "[a]", "a\n"])
def test_what_is_no_glob_is_refused(glob: str) -> None:
    with pytest.raises(ValueError, match="is not a glob of images"):
        compile_image_glob(glob)


def test_a_file_that_refuses_its_own_image_does_not_load() -> None:
    with pytest.raises(PolicyError, match=r"p:2: sandbox\.image: image 'alpine' is not one that `images`"):
        load_policy(sandbox(image="alpine", images=["python"]), "p")
    with pytest.raises(PolicyError, match=r"sandbox\.image: image 'alpine' has no digest"):
        load_policy(sandbox(image="alpine", require_digest=True), "p")
    assert load_policy(sandbox(images=["python"]), "p")  # an operator's layer has no image of its own


def test_an_image_must_be_on_the_lists_of_both_layers() -> None:
    image = "registry.example.com/a:1"
    allowing, refusing = sandbox(images=["registry.example.com/*"]), sandbox(images=["python"])
    for own, above, refused in [
        (sandbox(image=image), allowing, False),
        (sandbox(image=image), refusing, True),
        (sandbox(image=image, images=["registry.example.com/*"]), refusing, True),
        (refusing, sandbox(image=image), True),
        (allowing, sandbox(image=image, images=["registry.example.com/a"]), False),
    ]:
        section = effective(own, above).document.sandbox
        assert (section.image_rule.refusal(section.image) is not None) == refused, (own, above)


def test_a_digest_that_either_layer_asks_for_is_asked_for() -> None:
    asking = "version: 1\nsandbox: {require_digest: true}\n"
    for own, above in [(asking, "version: 1\n"), ("version: 1\nsandbox: {require_digest: false}\n", asking)]:
        assert effective(own, above).document.sandbox.require_digest
