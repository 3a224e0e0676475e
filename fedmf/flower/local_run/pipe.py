"""Messages over a pipe between processes, with the bytes of arrays beside the pickle and not within it."""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Array

Packet = tuple[bytes, list[pickle.PickleBuffer]]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Array and type(obj.data) is bytes:
            return _array, (obj.dtype, obj.shape, obj.stype, pickle.PickleBuffer(obj.data))
        return NotImplemented


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    return Array(dtype, tuple(shape), stype, data)


def packed(value: Any) -> Packet:
    """A value as the pickle and the buffers that it leaves out; anything that fails, fails here."""
    head, buffers = io.BytesIO(), []
    _Pickler(head, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(value)
    return head.getvalue(), buffers


def send(connection: Connection, packet: Packet) -> None:
    """Send what `packed` gave."""
    head, buffers = packet
    connection.send_bytes(len(buffers).to_bytes(4, "little") + head)
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def receive(connection: Connection) -> Any:
    """The next value.

    Raises:
        EOFError, OSError: the other end is gone.
    """
    first = connection.recv_bytes()
    buffers = [connection.recv_bytes() for _ in range(int.from_bytes(first[:4], "little"))]
    return pickle.loads(memoryview(first)[4:], buffers=buffers)
