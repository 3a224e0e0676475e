"""What is fixed before the first row of a private stream, with a horizon or without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmf.streaming.plans.bounded import BoundedPlan
from fedmf.streaming.plans.plan import StreamPlan
from fedmf.streaming.plans.unbounded import UnboundedPlan
from fedmf.streaming.rows import Layout
from fedmf.streaming.settings import Settings

__all__ = ["BoundedPlan", "StreamPlan", "UnboundedPlan", "plan_from_dict", "plan_stream"]


def plan_stream(settings: Settings, layout: Layout, rounds: int | None) -> StreamPlan:
    """Build the matrices and calibrate the noise.

    Args:
        settings: what was asked for.
        layout: of the rows.
        rounds: n; None for a stream without a horizon.

    Raises:
        ValueError: something asked for is impossible; the message says what.
    """
    if rounds is None:
        return UnboundedPlan.of(settings, layout)
    return BoundedPlan.of(settings, layout, rounds)


def plan_from_dict(description: Mapping[str, Any]) -> StreamPlan:
    """What `StreamPlan.to_dict` wrote."""
    kind = UnboundedPlan if "segments" in description else BoundedPlan
    return kind.from_dict(description)
