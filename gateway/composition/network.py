"""Builds the doors by which connections leave sandboxes."""

import secrets
import ssl
from functools import cache

from gateway.composition.foundation import Foundation
from gateway.config.network_settings import CredentialSettings
from gateway.e2b.egress_rules import EgressRules
from gateway.errors import Misconfigured
from gateway.network.connection_records import ConnectionRecords
from gateway.network.door import Doors
from gateway.network.opening import Opening, Trust
from gateway.network.outgoing import Outgoing
from gateway.network.thread_rules import ThreadRules
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.connection_store import ConnectionStore
from gateway.storage.database import agreed
from gateway.storage.e2b_store import E2bStore
from gateway.storage.quota_store import QuotaStore
from gateway.telemetry import attributes as a
from gateway.tenancy.quotas import BYTES, Quotas


async def make_doors(base: Foundation) -> Doors:
    """Return the doors; Misconfigured if a credential cannot be used."""
    config = base.config
    # Shared by the gateways of a database, which use the same sandboxes: what trusts one of them trusts all.
    secret = bytes.fromhex(await agreed(base.database, "network_secret", offered=secrets.token_hex(32)))

    @cache  # on first use: most gateways open no connection, and reading the authorities takes a moment
    def trust() -> Trust:
        return Trust(_trust(base, "http/1.1"), _trust(base, "h2", "http/1.1"))

    if config.network.ca_file is not None:
        trust()
    openings: dict[str, Opening] = {}
    for name, tenant in config.tenants.items():
        settings = [_resolved(base, one) for one in tenant.credentials]
        openings[name] = Opening(name, settings, secret, trust)
        if settings:
            try:
                await openings[name].credentials.check()
            except Misconfigured as error:
                raise Misconfigured(f"tenants.{name}.{error}") from error
    quotas, telemetry = Quotas(QuotaStore(base.database, base.process_id)), base.telemetry

    async def measured(one: Outgoing) -> None:
        policy, tenant = one.policy.policy(), one.policy.thread.tenant
        if telemetry.on:
            label = telemetry.tenants(tenant)
            ended = {a.TENANT: label, a.VERDICT: one.verdict, a.OUTCOME: one.outcome or "completed"}
            telemetry.instruments.add("airlock.network.connections", 1, ended)
            for direction, size in (("up", one.bytes_up), ("down", one.bytes_down)):
                telemetry.instruments.add("airlock.network.io", size, {a.TENANT: label, a.DIRECTION: direction})
        await quotas.add(tenant, policy.document.quotas, {BYTES: one.bytes_up + one.bytes_down})

    records = ConnectionRecords(ConnectionStore(base.database, gateway=base.process_id), measured)
    rules = ThreadRules(EgressRules(E2bStore(base.database)).of)
    return Doors(ApprovalStore(base.database), records, openings.__getitem__, base.heavy_work, rules)


def _trust(base: Foundation, *protocols: str) -> ssl.SSLContext:
    trust = ssl.create_default_context()
    trust.set_alpn_protocols(protocols)
    if (file := base.config.network.ca_file) is not None:
        try:
            trust.load_verify_locations(base.config.path(file))
        except OSError as error:  # ssl.SSLError is one
            raise Misconfigured(f"network.ca_file: {file}: {error.strerror or error}") from error
    return trust


def _resolved(base: Foundation, one: CredentialSettings) -> CredentialSettings:
    """Return settings in which a file is where the configuration says, seen from its own directory."""
    if one.secret.file is None:
        return one
    secret = one.secret.model_copy(update={"file": base.config.path(one.secret.file)})
    return one.model_copy(update={"secret": secret})
