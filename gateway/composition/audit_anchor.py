"""Anchoring of the audit, as the configuration asks for it."""

from __future__ import annotations

from gateway.audit.anchoring import Anchoring, to_command, to_file
from gateway.audit_chain.anchor import private_key
from gateway.composition.foundation import Foundation
from gateway.config.audit_settings import AnchorSettings
from gateway.storage.audit_reader import AuditReader


def make_anchoring(on: Foundation, settings: AnchorSettings) -> Anchoring:
    """Make what writes anchors; Misconfigured where the key is not one."""
    key = private_key(on.config.path(settings.key_file))
    put = to_file(on.config.path(settings.file)) if settings.file is not None else to_command(settings.command or ())
    return Anchoring(AuditReader(on.database), key, put)
