"""Builds the foundation: the database, telemetry and the policies in force."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from gateway.config.config import Config
from gateway.policy_versions.policies import Policies
from gateway.policy_versions.policy_files import PolicyFiles
from gateway.serving.directory_locks import shared_instance
from gateway.serving.listening import refuse_known_keys
from gateway.serving.workers import Worker
from gateway.storage.database import Database
from gateway.storage.migration import NEWEST
from gateway.storage.policy_store import PolicyStore
from gateway.storage.store import Store
from gateway.support.clock import make_id
from gateway.support.heavy_work import HeavyWork
from gateway.support.version import airlock_version
from gateway.telemetry.gauges import counted
from gateway.telemetry.telemetry import Telemetry, opened
from gateway.tenancy.tenants import Tenants

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Foundation:
    """What all other parts use.

    `process_id` identifies this process in the database, `instance` the containers and volumes of all its gateways.
    """

    config: Config
    process_id: str
    instance: str
    database: Database
    telemetry: Telemetry
    policies: Policies
    tenants: Tenants
    store: Store
    heavy_work: HeavyWork


async def open_foundation(stack: AsyncExitStack, config: Config, worker: Worker) -> Foundation:
    """Open and migrate the database and load the policies; Misconfigured if a gateway must not start with them."""
    process_id = make_id("gw")
    database = await Database.open(config.resolved_database_url())
    stack.push_async_callback(database.close)
    log.info("airlock starts", version=airlock_version(), schema=NEWEST, process=process_id)
    telemetry = await stack.enter_async_context(opened(config.telemetry, process=process_id, worker=worker.index))
    await stack.enter_async_context(counted(telemetry, database))
    await refuse_known_keys(database)
    instance = await shared_instance(database, config.path(config.state_dir))
    policies = await stack.enter_async_context(policies_in_force(config, database, telemetry))
    tenants, store = Tenants(config, policies), Store(database, gateway=process_id)
    heavy_work = HeavyWork()
    stack.callback(heavy_work.close)
    return Foundation(config, process_id, instance, database, telemetry, policies, tenants, store, heavy_work)


@contextlib.asynccontextmanager
async def policies_in_force(config: Config, database: Database, telemetry: Telemetry) -> AsyncIterator[Policies]:
    """Load the policies in force, and follow their files and the database until the block ends."""
    policies = Policies(PolicyStore(database))
    files = PolicyFiles(config, policies)
    try:
        await policies.open()
        await files.open()
        telemetry.instruments.read("airlock.policy.drift", lambda: len(files.drifted))
        async with policies.following(), files.watching():
            yield policies
    finally:
        files.close()
        policies.close()
