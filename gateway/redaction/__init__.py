"""What is taken out of results before anybody sees them, and which results are withheld."""

from gateway.redaction.finders import RedactionFailed
from gateway.redaction.redactor import RedactingStream, Redactor

__all__ = ["RedactingStream", "RedactionFailed", "Redactor"]
