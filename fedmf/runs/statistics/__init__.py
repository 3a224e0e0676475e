"""What a run releases in addition to its models, under the same ε: a statistic is a file here and a
line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.runs.statistics.clip_norm import FixedClipping, QuantileClipping
from fedmf.runs.statistics.statistic import Statistic
from fedmf.values import Value, by_kind, value_of

#: By the name that configurations and records give them, then by kind; the first is part of every
#: run.
STATISTICS: Final[dict[str, Mapping[str, type[Value]]]] = {
    "clipping": by_kind(FixedClipping, QuantileClipping),
}


def statistics_from(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a record names among other things, by name.

    Raises:
        ValueError: an unknown kind, or fields that the kind lacks.
    """
    return {
        name: value_of(kinds, values[name]) for name, kinds in STATISTICS.items() if name in values
    }


__all__ = [
    "STATISTICS",
    "FixedClipping",
    "QuantileClipping",
    "Statistic",
    "statistics_from",
]
