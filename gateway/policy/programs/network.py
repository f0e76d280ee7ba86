"""Programs that speak to other hosts."""

from __future__ import annotations

import re

from gateway.policy.programs.call import Call, Describe
from gateway.policy.programs.options import Parsed, compile_options, read_options
from gateway.policy.programs.plain import parsed_call, take_values
from gateway.policy.programs.urls import plain_host, remote_host, url_host
from gateway.policy.words import Word

_CURL = (
    "-0123468aBfgGiIjJkLlMNOpqRsSvZ# -A: -b: -c:write -C: -d: -D:write -e: -E:read -F: -H: -m: -o:write -r:"
    " -T: -u: -U: -w: -x: -X: -y: -Y: -z: --append --anyauth --basic --cacert=read --capath=read_below --cert=read"
    " --cert-type= --ciphers= --compressed --connect-timeout= --continue-at= --cookie= --cookie-jar=write"
    " --create-dirs --crlf --crlfile=read --data= --data-ascii= --data-binary= --data-raw= --data-urlencode= --digest"
    " --dump-header=write --etag-compare=read --etag-save=write --expect100-timeout= --fail --fail-early"
    " --fail-with-body --form= --form-string= --get --globoff --head --header= --http1.0 --http1.1 --http2 --http3"
    " --include --insecure --ipv4 --ipv6 --json= --keepalive-time= --key=read --key-type= --limit-rate="
    " --list-only --location --location-trusted --max-filesize= --max-redirs= --max-time= --negotiate"
    " --no-buffer --no-keepalive --no-progress-meter --noproxy= --oauth2-bearer= --output=write"
    " --output-dir=write_below --parallel --parallel-max= --pass= --path-as-is --post301 --post302 --progress-bar"
    " --proto= --proxy= --proxy-user= --range= --rate= --referer="
    " --remote-header-name --remote-name --remote-name-all --remote-time --remove-on-error"
    " --request= --request-target= --retry= --retry-all-errors"
    " --retry-connrefused --retry-delay= --retry-max-time= --show-error --silent --speed-limit= --speed-time= --ssl"
    " --ssl-reqd --stderr=write --styled-output --tcp-nodelay --time-cond= --tls-max= --tlsv1 --tlsv1.2 --tlsv1.3"
    " --trace=write --trace-ascii=write --trace-time --upload-file= --url= --url-query= --user="
    " --user-agent= --verbose --write-out= --xattr --no-sessionid --no-fail --no-location --use-ascii --version --help"
)
_WGET = (
    "-46bcdEFhHkKLmNpqrSvVx -a:write -A: -B: -D: -e: -i:read -I: -l: -o:write -O:write -P:write_below -Q: -R: -t: -T:"
    " -U: -w: -X: -n: --quiet --verbose --no-verbose --output-document=write --output-file=write --append-output=write"
    " --directory-prefix=write_below --continue --timestamping --tries= --timeout= --user-agent= --header= --post-data="
    " --post-file=read --body-data= --body-file=read --method= --user= --password= --recursive --level= --no-parent"
    " --mirror --page-requisites --convert-links --no-check-certificate --show-progress --progress= --no-clobber"
    " --spider --save-cookies=write --load-cookies=read --ca-certificate=read --certificate=read --private-key=read"
    " --no-directories --content-disposition --max-redirect= --wait= --limit-rate= --accept= --reject= --domains="
    " --retry-connrefused --waitretry= --server-response --referer= --input-file=read --inet4-only --inet6-only"
    " --no-proxy --no-cookies --no-cache --no-hsts --random-wait --adjust-extension --span-hosts --debug --version"
    " --compression= --trust-server-names --connect-timeout= --read-timeout= --dns-timeout= --force-directories"
    " --no-host-directories --cut-dirs= --keep-session-cookies --auth-no-challenge"
)
_SSH = (
    "-46AaCfGgKkMNnqsTtVvXxYy -B: -b: -c: -D: -E:write -e: -i:read -J: -L: -l: -m: -O: -o: -p: -Q: -R: -S:write -W: -w:"
)
_COPIES = "-12346ABCOpqrRTv -c: -D: -i:read -J: -l: -o: -P: -X:"
_RSYNC = (
    "-0468abcCdDEgGhHiIklLmnNoOpPqrRstuUvWxXyz -B: -f: -T:write --verbose --quiet --checksum --archive --recursive"
    " --relative --no-relative --update --inplace --append --dirs --links --copy-links --safe-links --hard-links"
    " --perms --executability --chmod= --acls --xattrs --owner --group --devices --specials --times --omit-dir-times"
    " --sparse --dry-run --whole-file --one-file-system --existing --ignore-existing --remove-source-files --delete"
    " --delete-before --delete-during --delete-after --delete-excluded --ignore-errors --force --max-delete="
    " --max-size= --min-size= --partial --partial-dir=write_below --prune-empty-dirs --timeout= --contimeout="
    " --ignore-times --size-only --temp-dir=write_below --compare-dest=read_below --copy-dest=read_below"
    " --link-dest=read_below --compress --exclude= --exclude-from=read --include= --include-from=read"
    " --files-from=read --from0 --stats --human-readable --progress --itemize-changes --out-format= --log-file=write"
    " --bwlimit= --list-only --numeric-ids --info= --no-owner --no-group --no-perms --mkpath --backup"
    " --backup-dir=write_below --suffix= --port= --cvs-exclude --no-times --password-file=read"
)
_SAFE_SSH = frozenset(
    """batchmode stricthostkeychecking userknownhostsfile connecttimeout port user loglevel
    serveraliveinterval serveralivecountmax identitiesonly passwordauthentication pubkeyauthentication compression
    requesttty checkhostip connectionattempts addressfamily ciphers macs kexalgorithms hostkeyalgorithms""".split()  # noqa: SIM905 - one name a line would take twenty
)

# Without a scheme curl takes these beginnings of a host's name for one.
_GUESSED = ("ftp.", "dict.", "ldap.", "imap.", "smtp.", "pop3.")


_PLAIN_PROTOCOLS = re.compile(r"=?https?(,https?)*")


def _curl(call: Call) -> None:
    options = compile_options(_CURL)
    parsed = read_options(call, options, call.words, runs=True)  # -K takes options out of a file
    take_values(call, options, parsed)
    for name, value in parsed.given:
        if value is not None:
            _curl_value(call, name, value)
    urls = [*parsed.operands, *parsed.values("--url")]
    globbed = not parsed.has("-g", "--globoff")
    for url in urls:
        _curl_url(call, url, globbed=globbed)
    if len(parsed.values("--output-dir")) > 1:
        call.refuse("curl has more than one --output-dir")
    if parsed.has("-O", "--remote-name", "--remote-name-all"):
        _named_by_host(call, urls, parsed.values("--output-dir")[:1])
    elif parsed.has("--output-dir"):
        for target in parsed.values("-o", "--output"):
            for directory in parsed.values("--output-dir")[:1]:
                both = target.kind == directory.kind == "literal"
                call.file(Word(f"{directory.text}/{target.text}") if both else Word("", "expansion"), "write")
    if parsed.has("-J", "--remote-header-name") and not parsed.has("--output-dir"):
        call.here("write_below")
    for target in parsed.values("-o", "--output"):
        if target.kind == "literal" and "#" in target.text:
            call.unknown("write")  # #1 stands for a part of the URL


def _curl_value(call: Call, name: str, value: Word) -> None:  # noqa: C901, PLR0912 - one case per option of curl
    text = value.text
    if value.kind != "literal":
        if name in (
            "-d",
            "-F",
            "-T",
            "-b",
            "-H",
            "-w",
            "--data",
            "--data-binary",
            "--form",
            "--upload-file",
            "--cookie",
        ):
            call.unknown("read")
        if name in ("-x", "--proxy", "--url"):
            call.host(None)
        return
    if name in ("-T", "--upload-file"):
        if set("{[") & set(text):
            call.unknown("read")  # curl expands these itself
        else:
            call.file(value, "read")
    elif name in (
        "-d",
        "--data",
        "--data-ascii",
        "--data-binary",
        "--json",
        "-H",
        "--header",
        "-w",
        "--write-out",
    ):
        if text.startswith("@"):
            call.file(Word(text[1:]), "read")
        if name in ("-w", "--write-out") and "%output{" in text:
            call.unknown("write")
    elif name in ("--data-urlencode", "--url-query"):
        if "@" in text.partition("=")[0]:
            call.file(Word(text.partition("@")[2]), "read")
    elif name in ("-F", "--form"):
        content = text.partition("=")[2]
        if content.startswith(("@", "<")):
            for part in content[1:].split(","):
                call.file(Word(part.partition(";")[0].strip('"')), "read")
        if "@" in content[1:] or "<" in content[1:]:
            call.unknown("read")
    elif name in ("-b", "--cookie"):
        if "=" not in text:
            call.file(value, "read")
    elif name in ("-x", "--proxy"):
        call.host(*(url_host(text, scheme="socks5") or (None, None)))
    elif name in ("-E", "--cert"):
        call.file(Word(text.partition(":")[0]), "read")
    elif name == "--proto" and not _PLAIN_PROTOCOLS.fullmatch(text):
        call.refuse("curl --proto is used with more than http and https")


def _curl_url(call: Call, url: Word, *, globbed: bool) -> None:
    if url.kind != "literal":
        call.host(None)
        call.unknown("read")
        return
    text = url.text
    if text.startswith("@"):
        call.refuse("curl takes URLs out of a file")
    if text.lower().startswith("file:"):
        path = text[5:]
        plain = path.startswith("///") and not set("%[{\\?#") & set(path)
        call.file(Word(path[2:]) if plain else Word("", "expansion"), "read")
        return
    host = url_host(text, scheme="http")
    authority = text.partition("://")[2] or text
    if host is None or (globbed and set("{[") & set(authority.partition("/")[0])):
        # A bracket may hold an IPv6 address or a range of hosts.
        call.host(None)
        if set("{[") & set(text.partition(":")[0]):
            call.unknown("read")
        return
    if host[0] is None and not text.lower().startswith(("http://", "https://")):
        call.unknown("read")  # it may be file: in a way of writing that is not known here
    guessed = "://" not in text and text.lower().startswith(_GUESSED)
    call.host(host[0], None if guessed else host[1])


def _named_by_host(call: Call, urls: list[Word], directories: list[Word]) -> None:
    """Take in files that get the last part of a URL as their name."""
    for url in urls:
        name = url.text.partition("?")[0].partition("#")[0].rpartition("/")[2]
        known = url.kind == "literal" and name and not set("[]{}%*\\") & set(name)
        for directory in directories or [Word(".")]:
            if directory.kind == "literal" and known:
                call.file(Word(f"{directory.text}/{name}"), "write")
            else:
                call.file(directory, "write_below")


def _wget(call: Call) -> None:
    options = compile_options(_WGET)
    parsed = read_options(call, options, call.words, runs=True)  # -e, --config, --use-askpass
    take_values(call, options, parsed)
    if parsed.has("-e"):
        call.refuse("wget -e changes any of its settings")
    if parsed.has("-i", "--input-file", "-r", "-m", "--recursive", "--mirror", "-p", "--page-requisites"):
        call.host(None)
    for url in parsed.operands:
        host = url_host(url.text, scheme="http") if url.kind == "literal" else None
        call.host(*(host or (None, None)))
    if parsed.has("-b"):
        call.file(Word("wget-log"), "write")
    directories = parsed.values("-P", "--directory-prefix")
    if not parsed.has("-O", "--output-document", "--spider"):
        plain = not parsed.has(
            "-r", "-m", "--recursive", "--mirror", "-x", "-p", "-E", "--content-disposition", "--trust-server-names",
            "--page-requisites", "--force-directories", "--adjust-extension", "-k", "-K", "--convert-links",
        )  # fmt: skip
        if plain and not directories:
            for url in parsed.operands:
                _numbered(call, url)
        elif not directories:
            call.here("write_below")


def _numbered(call: Call, url: Word) -> None:
    """Take in what wget writes: an existing file is kept, and the new one gets a number."""
    if url.kind != "literal" or set("%*[]?#\\") & set(url.text) or url.text.lower().startswith("ftp"):
        call.here("write_below")
        return
    path = url.text.partition("://")[2] or url.text
    name = (path.rpartition("/")[2] if "/" in path else "") or "index.html"
    call.file(Word(name), "write")
    call.file(Word(f"{name}.1"), "write")


def _ssh(call: Call) -> None:
    options = compile_options(_SSH)
    parsed = read_options(call, options, call.words, runs=True, permute=False)
    take_values(call, options, parsed)
    _ssh_options(call, parsed)
    if parsed.operands:
        _ssh_host(call, parsed, parsed.operands[0])


def _ssh_host(call: Call, parsed: Parsed, word: Word) -> None:
    text = word.text
    ports = [int(value.text) for value in parsed.values("-p", "-P") if value.kind == "literal" and value.text.isdigit()]
    if word.kind != "literal":
        call.host(None)
        return
    if text.startswith(("ssh://", "scp://", "sftp://")):
        call.host(*(url_host(text) or (None, None)))
        return
    call.host(plain_host(text), ports[-1] if ports else 22)


def _ssh_options(call: Call, parsed: Parsed) -> None:
    """Refuse the settings of ssh that run programs or let others in."""
    for option in parsed.values("-o"):
        name, _, setting = option.text.replace(" ", "=", 1).partition("=")
        if option.kind != "literal" or name.lower() not in _SAFE_SSH:
            call.refuse(f"{call.name} -o {name[:40]} may run a program")
        elif name.lower() == "userknownhostsfile":
            call.file(Word(setting), "write")
    refused = ("-D", "-L", "-R", "-W", "-w", "-O", "-S") if call.name == "ssh" else ("-D", "-X")
    for name, value in parsed.given:
        if name in refused and value is not None:
            call.refuse(f"{call.name} {name} forwards connections or runs a program")
        elif name == "-J" and value is not None:
            for jump in value.text.split(","):
                call.host(plain_host(jump.partition(":")[0]) if value.kind == "literal" else None, 22)


def _copies(call: Call) -> None:
    options = compile_options(_COPIES)
    parsed = read_options(call, options, call.words, runs=True)  # -S
    take_values(call, options, parsed)
    _ssh_options(call, parsed)
    if call.name == "sftp":
        call.refuse("sftp takes commands from its input")
        call.host(None)
    _to_and_from(call, parsed)


def _to_and_from(call: Call, parsed: Parsed) -> None:
    """Take in operands that are each on this host or another; the last is the destination."""
    port = None if parsed.has("-P") else 22
    counted = all(word.one_word for word in parsed.operands)
    for place, word in enumerate(parsed.operands):
        last = place == len(parsed.operands) - 1
        if word.kind == "literal":
            if "://" in word.text:
                call.host(*(url_host(word.text) or (None, None)))
                continue
            host = remote_host(word.text)
            if host is not None:
                call.host(host, 873 if "::" in word.text else port)
                continue
        elif not word.prefix.startswith(("/", "./")):
            call.host(None)
        call.file(word, "write_below" if last else "read_below", dash=False)
        if not last and not counted:
            call.file(word, "write_below", dash=False)


def _rsync(call: Call) -> None:
    options = compile_options(_RSYNC)
    parsed = read_options(call, options, call.words, runs=True)  # -e, --rsh, --rsync-path, -M
    take_values(call, options, parsed)
    if parsed.has("--files-from"):
        call.unknown("read")
    if parsed.has("--remove-source-files"):
        call.files(parsed.operands, "write_below", dash=False)
    if len(parsed.operands) == 1:
        call.file(parsed.operands[0], "list_below", dash=False)
    _to_and_from(call, parsed)


def _host_and_port(options: str, default: int | None, *, runs: bool = False) -> Describe:
    def describe(call: Call) -> None:
        parsed = parsed_call(call, options, runs=runs)
        operands = parsed.operands
        if parsed.has("-U"):
            call.files(operands, "write")
            return
        if parsed.has("-x"):
            for value in parsed.values("-x"):
                call.host(plain_host(value.text.partition(":")[0]) if value.kind == "literal" else None)
        if not operands:
            return
        host = plain_host(operands[0].text) if operands[0].kind == "literal" else None
        ports = [word.text for word in operands[1:]]
        if not ports:
            call.host(host, default)
        for port in ports:
            call.host(host, int(port) if port.isascii() and port.isdigit() and len(port) < 6 else None)

    return describe


PROGRAMS: dict[str, Describe] = {
    "curl": _curl,
    "wget": _wget,
    "ssh": _ssh,
    "scp": _copies,
    "sftp": _copies,
    "rsync": _rsync,
    **dict.fromkeys(
        ("nc", "netcat", "ncat"),
        _host_and_port("-46bCdDFhklnNrStuUvz -i: -I: -m: -M: -O: -p: -P: -q: -s: -T: -V: -w: -x: -X:", None, runs=True),
    ),
    "telnet": _host_and_port("-468acdEFKLrx -l: -b: -S: -X:", 23),
    "ftp": _host_and_port("-46adeginptv -P:", 21),
    "ping": _host_and_port("-46aAbBdDfhLnOqrRUvV -c: -F: -i: -I: -l: -m: -M: -p: -Q: -s: -S: -t: -T: -w: -W:", None),
    **dict.fromkeys(("socat", "aria2c", "lftp", "axel"), lambda call: call.refuse(f"{call.name} is not known here")),
}
