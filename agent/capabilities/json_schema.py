"""JSON Schema (Draft 2020-12): checks a schema, and whether a value fits it. References are never fetched.

A value is checked in a separate process with a limit of processor time, which a busy machine does not use up: a regular
expression that backtracks blocks every thread of its process and cannot be interrupted.

jsonschema is imported where it is used: it is slow to import, and few agents need it.
"""

import asyncio
import json
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import urljoin

from pydantic import JsonValue

MAX_SCHEMA_CHARS = 64 * 1024
MAX_ERRORS = 10
ERROR_CHARS = 300

_MEMORY_LIMIT_BYTES = 1024**3
WAIT_LIMIT_S = 60.0
"""How long a check may wait for a processor in addition to its own time."""


def short(text: str) -> str:
    """Return a text of bounded length."""
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}..."


async def errors_of(schema: Mapping[str, JsonValue], value: JsonValue, *, limit_s: int = 10) -> list[str]:
    """Return the errors in a value, at most MAX_ERRORS. `limit_s` limits the processor time."""
    asked = json.dumps([limit_s, schema, value]).encode()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # no secrets of this process
        start_new_session=True,  # Ctrl-C does not reach it
    )
    try:
        async with asyncio.timeout(limit_s + WAIT_LIMIT_S):
            answer, _ = await process.communicate(asked)
    except TimeoutError:
        return ["the value could not be judged: the machine was too busy"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        return [f"the value could not be judged within {limit_s} s: make it smaller and simpler"]
    try:
        return [str(error) for error in json.loads(answer)]
    except ValueError:
        return ["the value could not be judged: make it smaller and simpler"]


def _errors_in(schema: dict[str, JsonValue], value: JsonValue) -> list[str]:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - see the top of the module
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # noqa: PLC0415 - as above

    validator: Any = Draft202012Validator(schema, registry=REGISTRY)  # the specifications only: nothing is fetched
    try:
        found = list(islice(validator.iter_errors(value), MAX_ERRORS))
    except Exception as error:  # endless self-reference, a number too large to divide
        return [short(f"the value could not be judged: {type(error).__name__}: {error}")]
    return [f"{short(one.json_path)}: {short(one.message)}" for one in found]


def checked(schema: Mapping[str, JsonValue], *, compiles: bool = True) -> dict[str, JsonValue]:
    """Return a copy of a valid schema. Raises ValueError that says where it is wrong.

    Without `compiles` patterns may be anything: Python takes seconds to compile some that are short.
    """
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415 - see the top of the module
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - as above

    try:
        text = json.dumps(dict(schema), allow_nan=False)
        copy: dict[str, JsonValue] = json.loads(text)
        if len(text) > MAX_SCHEMA_CHARS:
            raise ValueError(f"it has {len(text)} characters as JSON, {MAX_SCHEMA_CHARS} at most are taken")
        for error in _metaschema(compiles).iter_errors(copy):
            raise _WrongSchema(f"the JSON Schema is wrong at {error.json_path}: {short(error.message)}")
        root = DRAFT202012.create_resource(copy)
        registry = REGISTRY.with_resource(root.id() or "", root).crawl()  # else each reference by name would do it
        _check_references(root, registry.resolver(root.id() or ""))
    except _WrongSchema:
        raise
    except RecursionError:
        raise ValueError("the JSON Schema is nested too deep") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the JSON Schema cannot be taken: {short(str(error))}") from None
    return copy


class _WrongSchema(ValueError):
    """A schema is not one of Draft 2020-12; str() says where."""


@lru_cache(2)
def _metaschema(compiles: bool) -> Any:
    """Return what validates schemas, with the vocabularies of the metaschema in one.

    It is ten times as fast: every subschema is looked at once, not once for each vocabulary.
    """
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415 - see the top of the module
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415 - as above

    whole = Draft202012Validator.META_SCHEMA
    parts = [REGISTRY.contents(urljoin(whole["$id"], part["$ref"])) for part in whole["allOf"]] + [whole]
    merged = {"type": whole["type"]}
    for name in ("$defs", "properties"):
        merged[name] = {key: value for part in parts for key, value in part.get(name, {}).items()}
    text = json.dumps(merged).replace('{"$dynamicRef": "#meta"}', '{"$ref": "#"}')
    own: Any = json.loads(re.sub(r'"\$ref": "meta/\w+#', '"$ref": "#', text))
    extend: Any = validators.extend
    kind = extend(Draft202012Validator, {"uniqueItems": _unique_items})
    return kind(own, registry=REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER if compiles else None)


def _unique_items(_validator: Any, _unique: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415 - see the top of the module

    # In a schema these are names; with anything else among them `items` fails, and comparing all takes very long.
    names = [one for one in instance if isinstance(one, str)] if isinstance(instance, list) else []
    if len(set(names)) < len(names):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _check_references(resource: Any, resolver: Any) -> None:
    """Raise ValueError for a reference to anything outside the schema and the specifications."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - see the top of the module

    contents: Any = resource.contents
    for keyword in ("$ref", "$dynamicRef"):
        reference = contents.get(keyword) if isinstance(contents, Mapping) else None
        try:
            if isinstance(reference, str):
                resolver.lookup(reference)
        except Unresolvable:
            leads = f"its {keyword} {reference!r} leads nowhere"
            raise ValueError(f"{leads}: put what it means under $defs, nothing is fetched") from None
    for inner in resource.subresources():
        _check_references(inner, resolver.in_subresource(inner))


def _check_stdin() -> None:
    import jsonschema  # noqa: F401, PLC0415 - before the limit, which is for the value

    os.nice(10)
    limit_s, schema, value = json.load(sys.stdin)
    used = resource.getrusage(resource.RUSAGE_SELF)
    end_s = math.ceil(used.ru_utime + used.ru_stime + limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (end_s, end_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    sys.stdout.write(json.dumps(_errors_in(schema, value)))


if __name__ == "__main__":
    _check_stdin()
