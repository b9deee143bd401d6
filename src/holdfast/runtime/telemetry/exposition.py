"""Metrics as Prometheus reads them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, groupby
from operator import itemgetter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.runtime.telemetry.families import FAMILIES, Family
from holdfast.runtime.telemetry.tally import Labels, Totals

Sample = tuple[Labels, float]
Span = tuple[Labels, list[float]]


class Exposition(Collector):
    """Shows totals; can also be registered with an application's own registry."""

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals

    def describe(self) -> list[Metric]:
        """Say nothing beforehand: whoever registers this need not ask the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Give each metric that there is something to say of."""
        totals = self._totals()
        for name, found in groupby(sorted(totals.numbers.items()), key=lambda item: item[0][0]):
            yield _numbers(FAMILIES[name], [(labels, value) for (_, labels), value in found])
        for name, spans in groupby(sorted(totals.spans.items(), key=itemgetter(0)), key=lambda item: item[0][0]):
            yield _histogram(FAMILIES[name], [(labels, counted) for (_, labels), counted in spans])

    def text(self) -> bytes:
        """Give all in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


def _numbers(family: Family, samples: Iterable[Sample]) -> Metric:
    sort = CounterMetricFamily if family.sort == "counter" else GaugeMetricFamily
    metric = sort(family.name, family.help, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


def _histogram(family: Family, spans: Iterable[Span]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    ends = [*map(str, family.buckets), "+Inf"]
    for labels, counted in spans:
        metric.add_metric(labels, list(zip(ends, accumulate(counted[:-1]), strict=True)), counted[-1])
    return metric
