"""Programs that speak to other hosts."""

import re

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.options import read_options
from gateway.policy.words import Word, names

_CURL = """-0468afgGiIkLNOpRsSvZ -A: -b: -c:write -d: -D:write -e: -F: -H: -m: -o:write -r: -T: -u: -w: -x: -X: -z:
    --cacert=read --compressed --connect-timeout= --cookie= --cookie-jar=write --create-dirs --data= --data-binary=
    --data-raw= --data-urlencode= --dump-header=write --fail --fail-with-body --form= --get --globoff --header=
    --http1.1 --http2 --include --insecure --json= --limit-rate= --location --max-time= --no-progress-meter
    --output=write --progress-bar --proxy= --range= --referer= --remote-name --request= --retry= --retry-delay=
    --show-error --silent --tlsv1.2 --tlsv1.3 --upload-file= --url= --user= --user-agent= --verbose --write-out=
    --version --help"""
_PORTS = {
    "http": 80, "https": 443, "ftp": 21, "ftps": 990, "sftp": 22, "scp": 22, "ssh": 22, "git": 9418, "git+ssh": 22,
    "ssh+git": 22, "ws": 80, "wss": 443, "rsync": 873, "socks4": 1080, "socks5": 1080, "socks5h": 1080,
}  # fmt: skip
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
# `http:/host/x` is a host to some programs, and so are backslashes in the place of slashes.
_UNUSUAL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)|.*\\", re.DOTALL)
# Somewhere in a word, as in `-ihttps://host/simple`.
_NAMED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}:/|@[A-Za-z0-9-]{1,63}\.[A-Za-z0-9.-]{1,63}:")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%:-]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5})?)?")
_SCP_LIKE = re.compile(r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?!//)")
# Without a scheme curl takes these beginnings of a host's name for one.
_GUESSED = ("ftp.", "dict.", "ldap.", "imap.", "smtp.", "pop3.")
PACKAGE_MANAGERS = names("""apk apt apt-get bower brew bundle bunx cargo composer conda dnf gem go mamba npm npx pdm pip
    pip2 pip3 pipenv pipx pnpm pnpx poetry rye uv uvx yarn yum""")
# What curl takes for data or for the name of a file that has them.
_MAY_READ = names("""-b -d -F -H -T -w --cookie --data --data-binary --data-urlencode --form --header --json
    --upload-file --write-out""")


def url_host(text: str, *, git: bool = False, scheme: str | None = None) -> tuple[str | None, int | None] | None:
    """Return host and port; (None, None) when they cannot be determined for sure, and None for what names no host.

    `git` reads `user@host:path` too. `scheme` is the one that is meant where none is written.
    """
    if _UNUSUAL.match(text):
        return None, None
    if (match := _URL.match(text)) is not None:
        named = match.group(1).lower()
        return _authority(named, match.group(2)) if named != "file" else None
    if git:
        short = _SCP_LIKE.match(text)
        return (short.group(2).strip("[]").lower(), 22) if short is not None else None
    return _authority(scheme, re.split(r"[/?#]", text, maxsplit=1)[0]) if scheme is not None else None


def _authority(scheme: str, authority: str) -> tuple[str | None, int | None]:
    # Programs differ on a second @, on a backslash and on signs outside of ASCII: such a host is not known.
    match = _AUTHORITY.fullmatch(authority)
    if match is None or authority.count("@") > 1:
        return None, None
    port = int(match.group(2)) if match.group(2) else _PORTS.get(scheme, _PORTS.get(scheme.rpartition("+")[2]))
    return match.group(1).strip("[]").rstrip(".").lower(), port


def _curl(call: Call) -> None:
    parsed = read_options(call, _CURL, strict=True)
    for name, value in parsed.given:
        if name in _MAY_READ and value is not None:
            file = name in ("-T", "--upload-file") or (name in ("-b", "--cookie") and "=" not in value.text)
            if file or value.kind != "literal" or set("@<") & set(value.text) or "%output{" in value.text:
                call.lose(f"{name} may name a file")
    for proxy in parsed.values("-x", "--proxy"):
        known = url_host(proxy.text, scheme="socks5") if proxy.kind == "literal" else None
        call.host(*(known or (None, None)))
    for url in [*parsed.operands, *parsed.values("--url")]:
        _curl_url(call, url, globbed=not parsed.has("-g", "--globoff"))
        if parsed.has("-O", "--remote-name"):
            name = url.text.partition("?")[0].partition("#")[0].rpartition("/")[2]
            known_name = url.kind == "literal" and name and not set("[]{}%*\\") & set(name)
            call.file(Word(name) if known_name else Word("."), "write" if known_name else "write_below")
    if any("#" in target.text for target in parsed.values("-o", "--output")):
        call.unknown("write")  # #1 stands for a part of the URL


def _curl_url(call: Call, url: Word, *, globbed: bool) -> None:
    text = url.text
    if url.kind != "literal" or text.startswith("@"):
        call.host(None)
        call.unknown("read")
        return
    host = url_host(text, scheme="http")
    authority = (text.partition("://")[2] or text).partition("/")[0]
    if host is None or host[0] is None or (globbed and set("{[") & set(authority)):
        # A bracket may hold an IPv6 address or a range of hosts, and file: may be written in ways not known here.
        call.host(None)
        if not text.lower().startswith(("http://", "https://")):
            call.unknown("read")
        return
    guessed = "://" not in text and text.lower().startswith(_GUESSED)
    call.host(host[0], None if guessed else host[1])


def named_hosts(call: Call) -> None:
    """Take in the hosts that a package manager is given to fetch from; where it fetches from by itself is no effect."""
    for word in call.words:
        if word.kind == "expansion":
            call.host(None)
        for found in _NAMED.finditer(word.text):
            host = url_host(word.text[found.start() :].removeprefix("@"), git=found.group().startswith("@"))
            if host is not None:
                call.host(*host)


PROGRAMS: dict[str, Describe] = {
    "curl": _curl,
    **dict.fromkeys(PACKAGE_MANAGERS, named_hosts),
}
