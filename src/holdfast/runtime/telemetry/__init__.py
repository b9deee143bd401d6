"""Telemetry: what a process tells about its jobs while it works, to whoever asked for it.

A `Watch` is told of what happens; metrics, tracing, Sentry and the journal are watches. Where nobody asked, there is no
watch, and each place that would tell one has a look at `None`. Watches observe: they decide nothing, and whatever goes
wrong in one is logged once and held up by nobody.
"""
