"""Who agreed to what: the allowlist of instances, a file that the user writes.

YAML, a list with an entry for each instance that said yes:

    - host: queer.example
      date: 2026-01-15                # when they agreed
      agreed_by: the moderators, by mail
      agreed_to: public posts of members, for research on bias; the texts aren't published
      terms: https://queer.example/terms

What isn't listed is not fetched. An instance that forbids scraping or training has to be asked
all the same (mastodon.social does since July 2025); a public post is not a licence.
"""

import datetime
import difflib
import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from corpora.errors import RequestError

NEEDED = ("host", "date", "agreed_by", "agreed_to", "terms")
SHAPE = (
    "- {host: queer.example, date: 2026-01-15, agreed_by: the moderators by mail, "
    "agreed_to: public posts for research on bias, terms: https://queer.example/terms}"
)
HOW_TO_ASK = (
    "ask an instance's moderators (https://HOST/about names them) what they and their members "
    f"agree to, write each yes down in a YAML file, as {SHAPE}, and give it as allowlist=FILE"
)

_HOST = re.compile(
    r"(?=.{1,253}(?::|$))[^\s/:@?#\[\]]+(?:\.[^\s/:@?#\[\]]+)*\.?|\[[0-9A-Fa-f:.]+\]"
)


@dataclass(frozen=True)
class Consent:
    """One instance's yes."""

    host: str  # lower case, with a port only where it is not the usual one
    date: str  # ISO, of the agreement
    agreed_by: str
    agreed_to: str
    terms: str
    scheme: str = "https"

    @property
    def base(self) -> str:
        """Where its pages begin, without a slash at the end."""
        return f"{self.scheme}://{self.host}"


def read_allowlist(path: str | None, allow_local: bool = False) -> list[Consent]:
    """Read every entry of the allowlist.

    Raises:
        RequestError: none is given or listed (and how to ask), or an entry is of the wrong
            shape (which one, and what is wrong with it).
    """
    if not path:
        raise RequestError(f"corpus.allowlist: none, so nothing is fetched; {HOW_TO_ASK}")
    file = Path(path).expanduser()
    try:
        # Plain texts only: YAML's own dates fail with a trace where a day doesn't exist.
        listed = yaml.load(file.read_text("utf-8-sig"), Loader=yaml.BaseLoader)
    except FileNotFoundError as error:
        raise RequestError(f"corpus.allowlist={path}: no such file; {HOW_TO_ASK}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"corpus.allowlist={path}: can't be read ({error})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise RequestError(f"{file}{line}: not YAML ({problem}); an entry is {SHAPE}") from error
    if not listed:
        raise RequestError(f"{file}: no instance is listed, so nothing is fetched; {HOW_TO_ASK}")
    if not isinstance(listed, list):
        raise RequestError(f"{file}: must be a list of entries, each as {SHAPE}")
    entries: dict[str, Consent] = {}
    for number, entry in enumerate(listed, 1):
        consent = _entry(entry, f"{file}, entry {number}", allow_local)
        if consent.host in entries:
            raise RequestError(f"{file}, entry {number}: {consent.host} is listed twice")
        entries[consent.host] = consent
    return list(entries.values())


def chosen(consents: list[Consent], instances: list[str], path: str | None) -> list[Consent]:
    """Those of the allowlist that `corpus.instances` names; all of them where it names none.

    Raises:
        RequestError: an instance that isn't listed.
    """
    if not instances:
        return consents
    by_host = {consent.host: consent for consent in consents}
    wanted = []
    for said in instances:
        host = bare(said)
        if host not in by_host:
            close = difflib.get_close_matches(host, by_host, n=1, cutoff=0.7)
            meant = f"; {close[0]} is" if close else f"; listed: {', '.join(by_host)}"
            raise RequestError(
                f"corpus.instances: {said} is not in {path}, so it is not fetched{meant}"
            )
        wanted.append(by_host[host])
    return list(dict.fromkeys(wanted))


def bare(said: str) -> str:
    """A host as people write it, without scheme and slashes, in lower case."""
    return re.sub(r"^https?://", "", said.strip(), flags=re.IGNORECASE).strip("/").casefold()


def check_public(consent: Consent) -> None:
    """Raise where the host stands for an address that is not of the public internet.

    A name that can't be resolved passes: there is no such host, which fetching it says.

    Raises:
        RequestError: a private, loopback, link-local or otherwise local address.
    """
    parts = urlsplit(consent.base)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return
    for _family, _kind, _protocol, _name, address in found:
        number = ipaddress.ip_address(str(address[0]).partition("%")[0])
        mapped = getattr(number, "ipv4_mapped", None) or number
        if not mapped.is_global or mapped.is_multicast:
            raise RequestError(
                f"{consent.host} is at {number}, which is no public address; for a server of "
                "your own say corpus.allow_local=true"
            )


def _entry(entry: Any, where: str, allow_local: bool) -> Consent:
    if not isinstance(entry, dict):
        raise RequestError(f"{where}: must be as {SHAPE}")
    entry = {key: " ".join(v.split()) if isinstance(v, str) else v for key, v in entry.items()}
    named = f"{where} ({entry['host']})" if entry.get("host") else where
    unknown = [str(key) for key in entry if key not in NEEDED]
    if unknown:
        close = difflib.get_close_matches(unknown[0], NEEDED, n=1, cutoff=0.5)
        meant = f"say {close[0]}" if close else f"an entry has {', '.join(NEEDED)}"
        raise RequestError(f"{named}: unknown key {unknown[0]}; {meant}")
    missing = [key for key in NEEDED if entry.get(key, "") in ("", "null", "~")]
    if missing:
        raise RequestError(f"{named}: {missing[0]} is missing; an entry is {SHAPE}")
    for key in NEEDED:
        if not isinstance(entry[key], str):
            raise RequestError(f"{named}: {key} must be text")
    scheme, host = _host(entry["host"], named, allow_local)
    terms = entry["terms"]
    if not re.fullmatch(r"https?://[^\s/]+\S*", terms):
        raise RequestError(f"{named}: terms={terms}: must be a link, https://…")
    date = _date(entry["date"], named)
    return Consent(host, date, entry["agreed_by"], entry["agreed_to"], terms, scheme)


def _host(said: str, named: str, allow_local: bool) -> tuple[str, str]:
    scheme = "http" if said.lower().startswith("http://") else "https"
    host = bare(said)
    if scheme == "http" and not allow_local:
        raise RequestError(f"{named}: http is refused, posts come over https; say host: {host}")
    name, colon, port = host.rpartition(":") if re.search(r":\d+$", host) else (host, "", "")
    if colon and not allow_local:
        raise RequestError(f"{named}: a port is refused; say host: {name}")
    if not _HOST.fullmatch(name) or (colon and not 0 < int(port) < 65536):
        raise RequestError(f"{named}: host={said}: must be a bare name, such as queer.example")
    return scheme, host


def _date(said: str, named: str) -> str:
    try:
        date = datetime.date.fromisoformat(said[:10])
    except ValueError as error:
        raise RequestError(f"{named}: date={said}: must be a day, such as 2026-01-15") from error
    if date > datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1):
        raise RequestError(f"{named}: date={said} is still to come; when did they agree?")
    return date.isoformat()
