"""Arguments of the six file tools: absolute paths, text that a file can contain, bounded numbers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from agent.tools.paths import WORKSPACE, resolve
from agent.tools.tool import ToolArguments


def _path(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - pydantic turns only a ValueError into its own error
    return resolve(value)


# A plain validator, because pydantic's str refuses surrogates: names that are not UTF-8 contain them.
Path = Annotated[str, PlainValidator(_path), WithJsonSchema({"type": "string"})]
"""A path argument: absolute and normalised after validation."""


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains an unpaired surrogate: write the complete character") from None
    return text


Text = Annotated[str, AfterValidator(_utf8)]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 - as above
    return value


# The bounds come first: pydantic omits those after a validator from the JSON Schema.
Count = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_no_bool)]
PageSize = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_no_bool)]


class _Directory(ToolArguments):
    path: Path = Field(WORKSPACE, description="absolute, or relative to /workspace")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, arguments: Any) -> Any:
        # Explicit, so that policy judges the directory even if the model gives none.
        return {"path": WORKSPACE, **arguments} if isinstance(arguments, dict) else arguments


class LsArguments(_Directory):
    """Arguments of ls."""

    offset: Count = Field(0, description="entries to skip")
    limit: PageSize = Field(1000, description="entries to return at most")


class ReadFileArguments(ToolArguments):
    """Arguments of read_file."""

    path: Path = Field(description="absolute, or relative to /workspace")
    offset: Count = Field(0, description="lines to skip")
    limit: PageSize = Field(2000, description="lines to return at most; a page holds 64 KiB at most")
    byte_offset: Count | None = Field(None, description="read on from this byte instead, for very long lines")


class WriteFileArguments(ToolArguments):
    """Arguments of write_file."""

    path: Path = Field(description="absolute, or relative to /workspace")
    content: Text = Field(description="the whole new content")


class EditFileArguments(ToolArguments):
    """Arguments of edit_file."""

    path: Path = Field(description="absolute, or relative to /workspace")
    old_text: Text = Field(min_length=1, description="exact text to replace, spaces and line ends included")
    new_text: Text = Field(description="text to put there")
    replace_all: bool = Field(False, description="replace every match, not only the first")


class GlobArguments(_Directory):
    """Arguments of glob."""

    pattern: str = Field(min_length=1, description="relative to path; ** crosses directories, as in **/*.py")
    offset: Count = Field(0, description="matches to skip")
    limit: PageSize = Field(1000, description="matches to return at most")


class GrepArguments(_Directory):
    """Arguments of grep."""

    pattern: str = Field(min_length=1, description="Python regular expression, matched line by line")
    include: str = Field("", description="only files whose name matches this glob, as in *.py")
    offset: Count = Field(0, description="matches to skip")
    limit: PageSize = Field(200, description="matches to return at most")
