"""Statistics that a run releases in addition to its models, under the same ε.

Each statistic has a file here and a line in `STATISTICS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.runs.statistics.client_metric import ClientMetric
from fedmf.runs.statistics.clip_norm import FixedClipping, QuantileClipping
from fedmf.runs.statistics.statistic import Statistic
from fedmf.values import Value, by_kind, value_of

#: By their tables in configurations, then by kind; the first is part of every run, and values of
#: the others, which have different kinds, may be among its extra releases.
STATISTICS: Final[dict[str, Mapping[str, type[Value]]]] = {
    "clipping": by_kind(FixedClipping, QuantileClipping),
    "client-metric": by_kind(ClientMetric),
}


def table_of(statistic: Statistic) -> str:
    """The table that describes a statistic."""
    tables = [name for name, kinds in STATISTICS.items() if type(statistic) in kinds.values()]
    return tables[0]


def clipping_from(record: Mapping[str, Any]) -> Any:
    """The clip norm of a recorded run.

    Raises:
        ValueError: an unknown kind, or fields that the kind lacks.
    """
    return value_of(STATISTICS["clipping"], record["clipping"])


def extra_releases_from(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """The extra releases of a recorded run in their order.

    Raises:
        ValueError: an unknown kind, or fields that the kind lacks.
    """
    known = dict[str, type[Value]]()
    for table, kinds in STATISTICS.items():
        if table != "clipping":
            known |= kinds
    return tuple(value_of(known, each) for each in record["extra_releases"])


__all__ = [
    "STATISTICS",
    "ClientMetric",
    "FixedClipping",
    "QuantileClipping",
    "Statistic",
    "clipping_from",
    "extra_releases_from",
    "table_of",
]
