"""The image probe: which images nodes can have, by Pods that run nothing of them."""

import asyncio
from collections.abc import Mapping, Sequence

from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.resources import Made
from sandbox.engines.kubernetes.trial import Trial, statuses_of
from sandbox.errors import EngineUnavailable, SandboxError

_AT_ONCE = 4
# In no image: its container does not start, which the kubelet finds out once the image is there.
_NOTHING = ("/airlock-trial-of-the-image",)


async def missing_images(trial: Trial, images: Sequence[str]) -> Mapping[str, str]:
    """Return why each image that nodes cannot have is not there."""
    at_once = asyncio.Semaphore(_AT_ONCE)
    found = await asyncio.gather(*(_missing(trial, f"image-{index}", one, at_once) for index, one in enumerate(images)))
    return {image: why for image, why in zip(images, found, strict=True) if why}


async def _missing(trial: Trial, part: str, image: str, at_once: asyncio.Semaphore) -> str:
    async with at_once:
        try:
            await trial.start(part, [manifests.bare_container("image", image, _NOTHING)], inside=True)
            await trial.wait_for(part, _is_there)
        except EngineUnavailable:
            raise
        except SandboxError as error:
            return str(error)
        finally:
            await trial.stop(part)
    return ""


def _is_there(pod: Made) -> bool:
    return any(
        "waiting" not in one["state"] or one["state"]["waiting"].get("reason") in manifests.NOT_STARTED
        for one in statuses_of(pod)
        if one.get("state")
    )
