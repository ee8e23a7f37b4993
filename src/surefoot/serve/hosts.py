"""The hosts and origins that requests may name, so that no page of another site can use a server.

A page of another site can have its own name resolve to this server's address (DNS rebinding); the browser
then lets it read the responses. Such a name is a public one, with a dot in it: without further options only
addresses, names without a dot and names below `localhost` are served.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from surefoot.serve.limits import RefusedError

ANY = "*"
LONGEST = 100  # characters of a client's text that are sent back
AUTHORITY = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(?::\d*)?")
Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Hosts:
    """The host names that are served in addition to addresses and local names.

    A page of an `allowed` one, on any port, may also send POST requests; `*` allows all. A page of the host
    at which the server `listens` needs the port of the request, too: other ports are other programs.
    """

    allowed: frozenset[str]
    listens: str

    @staticmethod
    def of(listens: str, *allowed: str) -> "Hosts":
        """From names in any case, with or without a trailing dot."""
        return Hosts(frozenset(_normal(name) for name in allowed), _normal(listens))

    def refusal(self, method: str, headers: Headers) -> RefusedError | None:
        """Why a request is refused; None where it is not."""
        given = [(name, value.decode("latin-1")) for name, value in headers]
        hosts = [value for name, value in given if name == b"host"]
        for host in hosts:  # a client of HTTP/1.0 sends none, and is no browser
            if not self._serves(host):
                return RefusedError(
                    421,
                    f"the host {_shown(host)} is not served here; allowed: an address, a name without a "
                    "dot, or one given with --allow-host",
                )
        if method in ("GET", "HEAD"):
            return None
        origins = [value for name, value in given if name == b"origin"]
        sites = [value.lower() for name, value in given if name == b"sec-fetch-site"]
        return self._refused_origin(hosts, origins, sites)

    def _serves(self, host: str) -> bool:
        name = _name(host)
        if name is None:
            return False
        local = "." not in name or name.endswith(".localhost") or _is_address(name)
        return local or name == self.listens or name in self.allowed or ANY in self.allowed

    def _refused_origin(self, hosts: list[str], origins: list[str], sites: list[str]) -> RefusedError | None:
        """Programs send none of these headers; what a browser sends in them, a page cannot change."""
        if sites == ["same-origin"]:  # also behind a proxy that replaces the host
            return None
        if any(site != "none" for site in sites):
            return RefusedError(403, "the request comes from a page of another site; allowed: the page at /")
        for origin in origins:
            if not self._is_own(origin, hosts):
                return RefusedError(
                    403,
                    f"the request comes from a page of {_shown(origin)}; allowed: the page at /, or a host "
                    "given with --allow-host",
                )
        return None

    def _is_own(self, origin: str, hosts: list[str]) -> bool:
        try:
            parts = urlsplit(origin.lower())
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.netloc:  # 'null' as well
            return False
        own = [host.lower() for host in hosts]
        return parts.netloc in own or _name(parts.netloc) in self.allowed or ANY in self.allowed


def _normal(name: str) -> str:
    return name.lower().rstrip(".")


def _name(authority: str) -> str | None:
    """The host in `host:port`, without a trailing dot; None where it is malformed."""
    match = AUTHORITY.fullmatch(authority.lower())
    return None if match is None else _normal(match["name"]) or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    """A client's text, shortened and without control characters."""
    return repr("".join(letter for letter in text if letter.isprintable())[:LONGEST])
