"""What a `postgresql://` URL says: how to reach the server, and in which schema the jobs lie."""

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.domain.errors import BadInput

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_OPTION = re.compile(r'invalid URI query parameter: "(\w+)"')
_ALWAYS = {
    "application_name": "holdfast",
    "client_encoding": "utf8",
    "connect_timeout": "5",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
"""Settings of the client's side that hold unless the URL says otherwise."""
TIMEOUTS = {
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Limits that no connection of ours is without."""
PLANS = {"jit": "off", "enable_seqscan": "off", "enable_sort": "off", "plan_cache_mode": "force_generic_plan"}
"""How our statements are planned: once, by look-ups, and never compiled. The tables that a claim works on are empty one
minute and full the next, and a plan made for the one must do for the other: a claim that was planned when nothing
waited would else gather all that waits and sort it, to take the first."""
SETTINGS = {**TIMEOUTS, **PLANS}


class Address(NamedTuple):
    """Where the jobs are."""

    conninfo: str
    schema: str
    shown: str
    """The address as it may be printed: without a password."""


def parse(url: str) -> Address:
    """Read a URL; `?schema=` is ours, every other option is libpq's."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable() from None
    options = parts.query.split("&") if parts.query else []
    schema = next((unquote(text.partition("=")[2]) for text in options if text.startswith("schema=")), "holdfast")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        msg = f"The schema {schema!r} is not a name of lower-case letters, digits and underscores (40 at the most)."
        raise BadInput(msg)
    query = "&".join(text for text in options if not text.startswith("schema="))
    plain = f"postgresql://{parts.netloc}{parts.path}{query and '?'}{query}"
    try:
        given = conninfo_to_dict(plain)
        conninfo = make_conninfo("", **{**_ALWAYS, **given})
    except psycopg.ProgrammingError as error:
        if strange := _OPTION.search(str(error)):
            msg = f"A PostgreSQL URL has no option {strange[1]!r}; it takes schema, and what libpq knows."
            raise BadInput(msg) from None
        raise _unreadable() from None
    host, name = str(given.get("host") or "localhost"), str(given.get("dbname") or given.get("user") or "postgres")
    port = str(given.get("port") or "")
    if parts.fragment or "@" in host + name or not all(each.isdecimal() for each in port.split(",") if each):
        raise _unreadable()
    return Address(conninfo, schema, f"postgresql://{_places(host.split(','), port.split(','))}/{name}")


def _places(hosts: list[str], ports: list[str]) -> str:
    """Put each host together with its port, as a URL does; one port is that of every host."""
    ports = ports * len(hosts) if len(ports) == 1 else ports
    hosts = [f"[{host}]" if ":" in host else host for host in hosts]
    return ",".join(f"{host}{port and ':'}{port}" for host, port in zip(hosts, ports, strict=False))


def _unreadable() -> BadInput:
    """Refuse a URL without repeating any of it: what is out of place is often a part of the password."""
    return BadInput(
        "The PostgreSQL URL cannot be read; write postgresql://user:password@host:port/database, and what is special "
        "in a password by its code: %2F for a slash, %40 for an @, %23 for a #, %25 for a percent sign."
    )
