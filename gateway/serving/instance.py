"""The instance id in the labels of containers and volumes. All gateways of a database share it, and so workspaces."""

import re
from pathlib import Path

from gateway.errors import Misconfigured
from gateway.storage.database import Database, agreed, value_of
from gateway.support.clock import MakeId, make_id

_NAME = "instance"
_ID = re.compile(r"gw_[0-9a-f]{24}")


async def shared_instance(database: Database, state_dir: Path, ids: MakeId = make_id) -> str:
    """Return the database's instance id; `state_dir` gets a copy.

    A database without one adopts the id that an earlier version stored in the state directory.
    """
    path = state_dir / _NAME
    own = _own(path)
    instance = await agreed(database, _NAME, offered=own or ids("gw"))
    if own not in (None, instance):
        raise Misconfigured(
            f"{path} names other containers and workspaces ({own}) than the database does ({instance}), and theirs "
            "would be lost. Give this gateway its own database, or remove that file if they are not needed"
        )
    if own is None:
        try:
            temporary = path.with_name(f".{_NAME}.{ids('new')}")
            temporary.write_text(instance, encoding="ascii")
            temporary.replace(path)
        except OSError as error:
            raise Misconfigured(f"{path}: {error}") from error
    return instance


async def known_instance(database: Database) -> str | None:
    """Return the database's id; None if no gateway has served it yet."""
    return await value_of(database, _NAME)


def _own(path: Path) -> str | None:
    """Return the id in the state directory; None if there is none."""
    try:
        instance = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: {error}") from error
    if not _ID.fullmatch(instance):
        raise Misconfigured(
            f"{path} is damaged: it names this gateway's containers and workspaces. Restore it from the label "
            "airlock.instance of one of them (`docker volume inspect`); without it their files are lost"
        )
    return instance
