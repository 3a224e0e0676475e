"""A seed fixes every draw of an app, whatever the number of workers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from support.whole_apps import Ask, asking, keep, kept, reply_with

from fedmf.flower import run_app


def draws() -> float:
    numpy = np.random.random()  # noqa: NPY002
    return random.random() + 10 * numpy + 100 * float(torch.rand(()))


drawing = ClientApp()


@drawing.train()
def _draw(message: Message, context: Context) -> Message:
    return reply_with(draws(), message)


def drawing_server(*cohorts: tuple[int, ...]) -> ServerApp:
    def body(ask: Ask, context: Context) -> None:
        context.state["server"] = MetricRecord({"all": [draws()]})
        for number, cohort in enumerate(cohorts):
            keep(context, ask(*cohort), f"cohort {number}")
        context.state["server"]["all"].append(draws())

    return asking(body)


def test_a_seed_fixes_every_draw_whatever_the_workers_and_leaves_the_generators_alone() -> None:
    def run(workers: int, seed: int | None, *cohorts: tuple[int, ...]) -> Context:
        return run_app(drawing_server(*cohorts), drawing, num_supernodes=4, workers=workers, seed=seed)

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = draws()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    first = run(1, 5, (0, 1, 2, 3), (1, 3))
    assert draws() == expected
    for workers in (1, 2, 4):
        assert run(workers, 5, (0, 1, 2, 3), (1, 3)).state == first.state
    numbers = [*kept(first, "server"), *kept(first, "cohort 0"), *kept(first, "cohort 1")]
    assert len(set(numbers)) == len(numbers) == 8
    # Another order, and others beside them: the same draws for the same message of the same node.
    other = run(2, 5, (3, 1), (3, 0, 1))
    (of3, of1), (next3, of0, next1) = kept(other, "cohort 0"), kept(other, "cohort 1")
    assert kept(first, "cohort 0") == [of0, of1, kept(first, "cohort 0")[2], of3]
    assert kept(first, "cohort 1") == [next1, next3]
    assert kept(other, "server") == kept(first, "server")
    assert kept(run(1, 6, (0,)), "cohort 0") != kept(first, "cohort 0")[:1]


def test_without_a_seed_no_two_workers_draw_the_same() -> None:
    """NumPy's and PyTorch's generators are copied with the process; Python's seeds itself."""
    parts = tuple(range(4)) * 3
    for draw in (np.random.random, lambda: float(torch.rand(()))):
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context, draw: Callable[[], float] = draw) -> Message:
            return reply_with(draw(), message)

        context = run_app(
            asking(lambda ask, context: keep(context, ask(*parts))), app, num_supernodes=4, workers=4
        )
        assert len(set(kept(context))) == len(parts)


def test_training_gives_the_same_bits_with_any_number_of_workers() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Dropout(), torch.nn.Linear(200, 1))
        x = torch.randn(500, 300)
        loss = model(x).square().sum()
        loss.backward()
        return reply_with((model[0].weight.grad.sum() + loss).item(), message)

    def body(ask: Ask, context: Context) -> None:
        keep(context, ask(*range(4)))

    before = torch.get_num_threads()
    results = [
        kept(run_app(asking(body), app, num_supernodes=4, workers=workers, seed=1)) for workers in (1, 2, 4)
    ]
    assert results[0] == results[1] == results[2]
    assert torch.get_num_threads() == before
