"""Variables whose value changes nothing about what the words after them run."""

import re

# Lower-case names are a script's own, except those that programs read.
_OWN = re.compile(r"[a-z][a-z0-9_]*|[A-Z]")
_NOT_OWN = re.compile(r"(npm|pnpm|yarn|bun|pip|uv)_.*|.*_proxy")
_HARMLESS = frozenset(
    """CI CLICOLOR COLUMNS COUNT CUDA_VISIBLE_DEVICES DEBIAN_FRONTEND DEBUG DIR FILE FILES FORCE_COLOR
    GIT_AUTHOR_DATE GIT_AUTHOR_EMAIL GIT_AUTHOR_NAME GIT_COMMITTER_DATE GIT_COMMITTER_EMAIL GIT_COMMITTER_NAME
    GOARCH GOMAXPROCS GOOS LANGUAGE LINES LOG_LEVEL MKL_NUM_THREADS NAME NODE_ENV NO_COLOR OMP_NUM_THREADS OUT
    PIP_NO_INPUT PORT PYTHONDONTWRITEBYTECODE PYTHONFAULTHANDLER PYTHONHASHSEED PYTHONIOENCODING PYTHONUNBUFFERED
    PYTHONUTF8 RUST_BACKTRACE RUST_LOG SOURCE_DATE_EPOCH TOKENIZERS_PARALLELISM TZ VERBOSE VERSION
    CARGO_TERM_COLOR PIP_DISABLE_PIP_VERSION_CHECK""".split()  # noqa: SIM905 - one name a line would take fifty
)
# With other character sets bash reads bytes of UTF-8 as blanks, or takes a backslash for half a letter.
_LOCALE = re.compile(r"LANG|LC_[A-Z]+")
_UTF8 = re.compile(r"(C|POSIX|)|(C|[a-z]{2,3}_[A-Z]{2})\.(UTF-8|utf-?8)")


def may_assign(name: str, value: str | None = None) -> bool:
    """Return whether a variable may get a value, None for any, for the shell and for the programs it starts."""
    if _LOCALE.fullmatch(name):
        return value is not None and _UTF8.fullmatch(value) is not None
    if name in _HARMLESS:
        return True
    return bool(_OWN.fullmatch(name)) and not _NOT_OWN.fullmatch(name)
