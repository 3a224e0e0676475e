"""Exact counts that only the operator is told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fedmf.errors import ConfigError

if TYPE_CHECKING:
    from fedmf.records import Ledger
    from fedmf.statements import RunHeader


_LONGEST: Final = 100
_MARK: Final = "NOT PRIVATE: exact counts, for the operator alone."


def operator_lines(run_dir: Path, header: RunHeader, ledger: Ledger) -> list[str]:
    """Contributions that arrived, how many of them count as zeros, and why.

    Args:
        run_dir: of the run.
        header: of its record.
        ledger: of its record.

    Raises:
        ConfigError: the file of failures cannot be read.
    """
    last = ledger.last_round()
    rounds, size = 0 if last is None else last + 1, header.plan.cohorts.size
    arrived = sum(1 for _ in ledger.participations())
    failures = _failures(run_dir)
    stages = Counter(str(one.get("stage")) for one in failures)
    first = {str(one.get("stage")): str(one.get("reason"))[:_LONGEST] for one in reversed(failures)}
    zero = sum(1 for one in failures if one.get("user"))
    share = f", {100 * zero / arrived:.1f} %" if arrived else ""
    each = f", {arrived / rounds:.1f} a round of {size} planned" if rounds else ""
    return [
        _MARK,
        f"  rounds            {rounds} released",
        f"  contributions     {arrived} arrived{each}",
        f"  of them zero      {zero} for a failure that was noted{share}",
        *(f"    {stage:<14}  {count}; the first: {first[stage]}" for stage, count in stages.most_common()),
    ]


def stream_lines(state_dir: Path) -> list[str]:
    """How many rows of a stream were clipped, zeroed and refused.

    Raises:
        StateError: the state cannot be opened.
    """
    from fedmf.streaming import StreamState

    with StreamState.open(state_dir) as state:
        counts = state.position.counts()
    return [_MARK, *(f"  {name.replace('_', ' '):<16}  {value}" for name, value in counts.items())]


def _failures(run_dir: Path) -> list[dict[str, object]]:
    from fedmf.runs import FAILURES

    try:
        with (run_dir / FAILURES).open(encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {run_dir / FAILURES}: {error}.") from None
