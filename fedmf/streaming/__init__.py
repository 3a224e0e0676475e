"""Private moments of a stream of rows as a job: reading, admission, durable state, output and statement."""

from fedmf.streaming.outputs import PrivateRelease, open_output
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.position import Position
from fedmf.streaming.push import PrivateStream
from fedmf.streaming.rows import InputError, Layout, RowBlock, RowReader
from fedmf.streaming.run import Handling, StreamRun
from fedmf.streaming.session import account_stream, open_reader, open_run, stream_costs
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState
from fedmf.streaming.statement import stream_statement
from fedmf.streaming.told import check_told, first_lines

__all__ = [
    "Handling",
    "InputError",
    "Layout",
    "Position",
    "PrivateRelease",
    "PrivateStream",
    "RowBlock",
    "RowReader",
    "Settings",
    "StreamPlan",
    "StreamRun",
    "StreamState",
    "account_stream",
    "check_told",
    "first_lines",
    "open_output",
    "open_reader",
    "open_run",
    "stream_costs",
    "stream_statement",
]
