"""The peers on PostgreSQL and the raw floor, on one server: `make bench-peers`, or `python -m bench.peers`."""

from bench.peers.environments import PEERS, Unavailable, install
from bench.peers.measures import Result, bulk, drain, latency, single
from bench.peers.server import server

__all__ = ["PEERS", "Result", "Unavailable", "bulk", "drain", "install", "latency", "server", "single"]
