from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.errors import Misconfigured
from gateway.sandboxes.channel_claim import ChannelUse, claim_channels
from gateway.storage.database import Database
from gateway.storage.engine_store import ChannelStore
from gateway.storage.tables import gateways


async def test_workers_that_start_at_once_claim_one_directory(database_url: str, tmp_path: Path) -> None:
    database = await Database.open(database_url)
    try:
        store, directory = ChannelStore(database), tmp_path / "channels"
        # Both looked before either claimed it.
        looked = ChannelUse("engine", "instance", directory, None, (), has_workspaces=False)
        claimed = await claim_channels(looked, store)
        live = {"id": "gw_1", "engine": "engine", "channels": str(directory), "address": "127.0.0.1:1"}
        await database.write((insert(gateways), live | {"started_us": 1, "expires_us": 2**60}))
        assert await claim_channels(looked, store) == claimed
        (directory / "identity").unlink()
        with pytest.raises(Misconfigured, match="is empty, but a gateway"):
            await claim_channels(looked, store)
    finally:
        await database.close()
