"""The floor on PostgreSQL, which is `holdfast bench`'s own."""

from holdfast.bench.floor import BATCHES, Best, best, bulk, drain, single

__all__ = ["BATCHES", "Best", "best", "bulk", "drain", "single"]
