"""What a `postgresql://` URL says: how to reach the server, and in which schema the jobs lie."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.domain.errors import BadInput

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_ALWAYS = {
    "application_name": "holdfast",
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
PLANS = {"jit": "off", "enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
"""How our statements are planned: once, by look-ups, and never compiled. The tables that a claim works on are empty one
minute and full the next, and a plan made for the one must do for the other."""
SETTINGS = {**TIMEOUTS, **PLANS}


class Address(NamedTuple):
    """Where the jobs are."""

    conninfo: str
    schema: str
    shown: str
    """The address as it may be printed: without a password."""


def parse(url: str) -> Address:
    """Read a URL; `?schema=` is ours, every other option is libpq's."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = options.pop("schema", "holdfast")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        msg = f"The schema {schema!r} is not a name of lower-case letters, digits and underscores (40 at the most)."
        raise BadInput(msg)
    plain = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(options)))
    try:
        given = conninfo_to_dict(plain)
        conninfo = make_conninfo("", **{**_ALWAYS, **given})
    except psycopg.ProgrammingError as error:
        msg = f"The PostgreSQL URL cannot be read: {str(error).strip()}."
        raise BadInput(msg) from error
    host, name = given.get("host") or "localhost", given.get("dbname") or given.get("user") or "postgres"
    port = f":{given['port']}" if given.get("port") else ""
    return Address(conninfo, schema, f"postgresql://{host}{port}/{name}")
