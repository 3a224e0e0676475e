"""Private moments of a stream of rows: reading, admission, durable state, output and statement.

`open_run` is the stream of a file, `open_periods` that of its weeks or days, and `PrivateStream`
that of rows pushed by a program.
"""

from fedmf.streaming.alarms import Alarms
from fedmf.streaming.period_run import PeriodRun, open_periods
from fedmf.streaming.private_release import PrivateRelease
from fedmf.streaming.push import PrivateStream
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.streaming.stream_rows import Layout
from fedmf.streaming.stream_run import StreamRun, account_stream, open_run, stream_costs

__all__ = [
    "Alarms",
    "Layout",
    "PeriodRun",
    "PrivateRelease",
    "PrivateStream",
    "Settings",
    "StreamPlan",
    "StreamRun",
    "StreamState",
    "account_stream",
    "open_periods",
    "open_run",
    "stream_costs",
]
