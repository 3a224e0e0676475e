"""Tensors in messages: the sender's own inside a process, Flower's bytes on the wire."""

import pickle
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from support.small_runs import client_for, linear_task, run_small, small_run

from fedmf.flower.arrays import TensorArray, array_record, tensor_of
from fedmf.flower.messages import read_request
from fedmf.runs.session import Session

VALUES = torch.arange(12, dtype=torch.float32).reshape(3, 4)


def test_inside_a_process_it_is_the_tensor_itself() -> None:
    array = array_record({"x": VALUES})["x"]
    assert tensor_of(array).data_ptr() == VALUES.data_ptr()
    assert "_data" not in array.__dict__, "bytes were made though nobody asked"
    copy = array.numpy()
    copy[0, 0] = -1
    assert VALUES[0, 0] == 0


def test_on_the_wire_it_is_flowers_array() -> None:
    array, flowers = TensorArray(VALUES), Array(VALUES.numpy())
    assert (array.dtype, array.shape, array.stype, array.data) == (
        flowers.dtype,
        flowers.shape,
        flowers.stype,
        flowers.data,
    )
    record, theirs = array_record({"x": VALUES}), ArrayRecord({"x": flowers})
    assert record.deflate() == theirs.deflate()
    assert array.deflate() == flowers.deflate()
    back = Array.inflate(array.deflate(), children=array.children)
    assert torch.equal(tensor_of(back), VALUES)


def test_another_process_gets_an_ordinary_array() -> None:
    array = pickle.loads(pickle.dumps(TensorArray(VALUES.to(torch.int64))))
    assert type(array) is Array
    received = tensor_of(array)
    received += 1  # writable, and its own memory
    assert np.array_equal(received.numpy(), VALUES.numpy().astype(np.int64) + 1)


def test_training_in_place_does_not_reach_the_servers_model(tmp_path: Path) -> None:
    """The raw updates of users would enter the next model without clipping or noise."""
    task = linear_task(24, 30)

    def vandal(session: Session) -> ClientApp:
        inner, outer = client_for(session), ClientApp()

        @outer.train()
        def train(message: Message, context: Context) -> Message:
            reply = inner(message, context)
            read_request(message).parameters.data.add_(1e6)
            return reply

        @outer.query()
        def query(message: Message, context: Context) -> Message:
            return inner(message, context)

        return outer

    run = small_run(task, workers=2)
    honest = run_small(tmp_path / "honest", run)
    assert np.array_equal(run_small(tmp_path / "vandal", run, vandal), honest)
