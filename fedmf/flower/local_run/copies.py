"""Copies of records: everyone who gets one may write into it, and nobody else sees that.

Flower's own grids pass messages as bytes, so that sender and receivers never share an object. Here they
would, and a client that halves ``lr`` in the config it received would halve it for the clients after it. What
is copied are containers, lists and the handles of arrays; the numbers of an array are shared, since nobody
can write into them: Flower's arrays hold bytes and give copies, and so do ours.
"""

from __future__ import annotations

import copy
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict


def copied_records(records: RecordDict) -> RecordDict:
    """Records of its own, which share nothing with the given ones but what cannot be written.

    >>> sent = RecordDict({"config": ConfigRecord({"lr": 0.1, "milestones": [1, 2]})})
    >>> received = copied_records(sent)
    >>> received["config"]["milestones"].append(3)
    >>> sent["config"]
    {'lr': 0.1, 'milestones': [1, 2]}
    """
    copied = records.copy()
    for name, record in records.items():
        copied[name] = _copied_record(record)
    return copied


def copied_message(message: Message) -> Message:
    """The message with metadata and records of its own."""
    metadata = copy.copy(message.metadata)
    if message.has_error():
        return Message(message.error, metadata=metadata)  # type: ignore[call-overload]
    return Message(copied_records(message.content), metadata=metadata)  # type: ignore[call-overload]


def copied_context(context: Context) -> Context:
    """The context with state and configs of its own."""
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=dict(context.node_config),
        state=copied_records(context.state),
        run_config=dict(context.run_config),
        series_id=context.series_id,
    )


def _copied_record(record: ArrayRecord | ConfigRecord | MetricRecord) -> Any:
    copied: Any = record.copy()
    for name, value in record.items():
        if isinstance(value, Array):
            copied[name] = _copied_array(value)
        elif isinstance(value, list):
            copied[name] = list(value)
    return copied


def _copied_array(array: Array) -> Array:
    """Another handle of the same bytes or tensor."""
    handle = object.__new__(type(array))
    handle.__dict__.update(array.__dict__)
    return handle
