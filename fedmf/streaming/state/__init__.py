"""The state directory of a stream: its rows, what binds them to its key, and its file of releases."""

from fedmf.streaming.state.schema import StateError
from fedmf.streaming.state.state import StreamState

__all__ = ["StateError", "StreamState"]
