"""Builds the anchoring of the audit."""

from __future__ import annotations

from gateway.audit.anchoring import Anchoring, to_command, to_file
from gateway.audit_chain.anchor import private_key
from gateway.composition.foundation import Foundation
from gateway.config.operation_settings import AnchorSettings
from gateway.storage.audit_reader import AuditReader


def make_anchoring(base: Foundation, settings: AnchorSettings) -> Anchoring:
    """Return the configured anchoring; Misconfigured if the key is invalid."""
    key = private_key(base.config.path(settings.key_file))
    put = to_file(base.config.path(settings.file)) if settings.file is not None else to_command(settings.command or ())
    return Anchoring(AuditReader(base.database), key, put)
