"""Private moments of a stream of rows: reading, admission, durable state, output and statement."""

from fedmf.streaming.alarms import Alarms
from fedmf.streaming.plan import StreamPlan
from fedmf.streaming.push import PrivateStream
from fedmf.streaming.release import PrivateRelease
from fedmf.streaming.rows import Layout
from fedmf.streaming.session import StreamRun, account_stream, open_run, stream_costs
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState

__all__ = [
    "Alarms",
    "Layout",
    "PrivateRelease",
    "PrivateStream",
    "Settings",
    "StreamPlan",
    "StreamRun",
    "StreamState",
    "account_stream",
    "open_run",
    "stream_costs",
]
