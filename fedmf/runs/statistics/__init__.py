"""Statistics that a run releases in addition to its models, under the same ε.

Each statistic has a file here and a line in `STATISTICS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.runs.statistics.clip_norm import FixedClipping, QuantileClipping
from fedmf.runs.statistics.statistic import Statistic
from fedmf.values import Value, by_kind, value_of

#: By their name in configurations and records, then by kind; the first is part of every run.
STATISTICS: Final[dict[str, Mapping[str, type[Value]]]] = {
    "clipping": by_kind(FixedClipping, QuantileClipping),
}


def statistics_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics in a record, by name.

    Raises:
        ValueError: an unknown kind, or fields that the kind lacks.
    """
    statistics = dict[str, Any]()
    for name, kinds in STATISTICS.items():
        if name in values:
            statistics[name] = value_of(kinds, values[name])
    return statistics


__all__ = [
    "STATISTICS",
    "FixedClipping",
    "QuantileClipping",
    "Statistic",
    "statistics_from",
]
