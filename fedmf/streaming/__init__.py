"""Private moments of a stream of rows as a job: reading, admission, durable state, output and statement."""

from fedmf.streaming.outputs import open_output
from fedmf.streaming.plan import METHODS, Settings, StreamPlan, make_plan
from fedmf.streaming.rows import InputError, Layout, RowBlock, RowReader
from fedmf.streaming.run import Handling, StreamRun
from fedmf.streaming.session import open_reader, open_run
from fedmf.streaming.state import Position, StateError, StreamState
from fedmf.streaming.statement import render_statement, stream_statement

__all__ = [
    "METHODS",
    "Handling",
    "InputError",
    "Layout",
    "Position",
    "RowBlock",
    "RowReader",
    "Settings",
    "StateError",
    "StreamPlan",
    "StreamRun",
    "StreamState",
    "make_plan",
    "open_output",
    "open_reader",
    "open_run",
    "render_statement",
    "stream_statement",
]
