"""Builds the doors by which connections leave sandboxes."""

import ssl

from gateway.composition.foundation import Foundation
from gateway.config.network_settings import CredentialSettings
from gateway.errors import Misconfigured
from gateway.network.door import Doors
from gateway.network.opening import Opening
from gateway.storage.approval_store import ApprovalStore


async def make_doors(base: Foundation) -> Doors:
    """Return the doors; Misconfigured if a credential cannot be used."""
    config = base.config
    directory = config.path(config.state_dir) / "network"
    trust = _trust(base, "http/1.1"), _trust(base, "h2", "http/1.1")
    openings: dict[str, Opening] = {}
    for name, tenant in config.tenants.items():
        settings = [_resolved(base, one) for one in tenant.credentials]
        openings[name] = Opening(name, settings, directory, trust)
        if settings:
            try:
                await openings[name].credentials.check()
            except Misconfigured as error:
                raise Misconfigured(f"tenants.{name}.{error}") from error
    return Doors(ApprovalStore(base.database), base.store.audit, openings.__getitem__)


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
