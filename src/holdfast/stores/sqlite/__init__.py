"""The embedded default: one SQLite file, any number of processes on one machine, nothing to install."""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
