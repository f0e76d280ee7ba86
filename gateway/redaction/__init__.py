"""What is taken out of results before anybody sees them, and which results are withheld.

Start at `redactor.py` and `hooks.py`. Imports gateway layers below 4, agent and sandbox.
"""

from gateway.redaction.finders import RedactionFailed
from gateway.redaction.redactor import RedactingStream, Redactor

__all__ = ["RedactingStream", "RedactionFailed", "Redactor"]
