"""curl: the files that it reads and writes. The hosts are not read here: each connection is judged when it is made."""

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
# How a URL begins that is surely no file, as file:///x is; of a literal one also a mere host.
_OF_A_HOST = re.compile(r"(https?|ftps?|wss?)://|[A-Za-z0-9._-]+(:[0-9]+)?[/?#]", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]+)?")
# What curl takes for data or for the name of a file that has them.
_MAY_READ = names("""-b -d -F -H -T -w --cookie --data --data-binary --data-urlencode --form --header --json
    --upload-file --write-out""")


def _curl(call: Call) -> None:
    parsed = read_options(call, _CURL, strict=True)
    for name, value in parsed.given:
        if name in _MAY_READ and value is not None:
            file = name in ("-T", "--upload-file") or (name in ("-b", "--cookie") and "=" not in value.text)
            if file or value.kind != "literal" or set("@<") & set(value.text) or "%output{" in value.text:
                call.lose(f"{name} may name a file")
    for url in [*parsed.operands, *parsed.values("--url")]:
        if not _OF_A_HOST.match(url.begins) and not _HOST.fullmatch(url.literal or ""):
            call.unknown("read")
        if parsed.has("-O", "--remote-name"):
            name = url.text.partition("?")[0].partition("#")[0].rpartition("/")[2]
            known_name = url.kind == "literal" and name and not set("[]{}%*\\") & set(name)
            call.file(Word(name) if known_name else Word("."), "write" if known_name else "write_below")
    if any("#" in target.text for target in parsed.values("-o", "--output")):
        call.unknown("write")  # #1 stands for a part of the URL


PROGRAMS: dict[str, Describe] = {"curl": _curl}
