"""`CorrelatedNoise`: released models are those of the definitions, clients and whole apps are
unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.server import strategy as older
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Result
from support.apps_of_runs import TASK, same_as_a_run
from support.hostile_replies import USELESS
from support.small_runs import small_run
from support.wrapped_apps import (
    COHORT,
    DIMENSION,
    INNER,
    ROUNDS,
    SHAPES,
    USER_LIST,
    USERS,
    Next,
    adding,
    dense_c,
    flat,
    model,
    noisy_means,
    private,
    saying,
    update_of,
)

from fedmf import load_model
from fedmf.cohorts import AvailableCohorts
from fedmf.errors import ConfigError
from fedmf.flower import ClientReportedIdentity, CorrelatedNoise, InProcessGrid
from fedmf.flower.layout import ArrayLayout
from fedmf.optim import JmeAdam, Sgd
from fedmf.runs.released_model import ReleasedModel
from fedmf.runs.statistics import QuantileClipping

MOVING = QuantileClipping(quantile=0.3, rounds_per_update=1)


#: What a server app needs later, if at all, and is slow to import.
SLOW = """
import sys
from fedmf.flower import CorrelatedNoise
print([name for name in ("numba", "pyarrow.compute", "requests") if name in sys.modules])
"""


def test_importing_the_wrapper_loads_nothing_slow() -> None:
    command = [sys.executable, "-c", SLOW]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "[]"


def clients(change: Callable[[int], np.ndarray] = update_of, **options: Any) -> InProcessGrid:
    return InProcessGrid(adding(lambda user, _: change(user), **options), nodes=USERS)


def released(
    strategy: CorrelatedNoise, grid: InProcessGrid | None = None, **options: Any
) -> ArrayRecord:
    result = strategy.start(grid=grid or clients(), **{"initial_arrays": model(), **options})
    strategy.close()
    assert result.arrays is not None
    return result.arrays


def by_hand(kind: str, start: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The server rules as Reddi et al. (2021) and Hsu et al. (2019) write them, in float64."""
    theta = start.copy()
    m = np.zeros_like(start)
    v = np.zeros_like(start)
    for t, u in enumerate(means):
        if kind in ("FedAvg", "FedProx"):
            theta = theta + u
        elif kind == "FedAvgM":
            m = 0.9 * m - u
            theta = theta - 0.5 * m
        else:
            beta_1 = 0.0 if kind == "FedAdagrad" else 0.9
            m = beta_1 * m + (1 - beta_1) * u
            if kind == "FedAdagrad":
                v = v + u**2
            elif kind == "FedAdam":
                v = 0.99 * v + 0.01 * u**2
            else:
                v = v - 0.01 * u**2 * np.sign(v - u**2)
            # Flower's correction of FedAdam's bias has one round more in its powers than Kingma and
            # Ba.
            rate = (
                0.1 * np.sqrt(1 - 0.99 ** (t + 2)) / (1 - 0.9 ** (t + 2))
                if kind == "FedAdam"
                else 0.1
            )
            theta = theta + rate * m / (np.sqrt(v) + 1e-3)
    return theta


@pytest.mark.parametrize("kind", INNER)
def test_released_models_are_the_inner_rule_of_dense_noisy_means(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is stopped and continued, on nodes under other ids and other ignored arguments,
    gives the same bits and the metrics of all rounds."""

    def run(path: Path, rounds: int, ignored: float = 1.0) -> ArrayRecord:
        inner = INNER[kind]()
        inner.fraction_train = inner.fraction_evaluate = ignored
        strategy = private(inner, path, users=ClientReportedIdentity(USER_LIST))
        grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
        loss = lambda t, _: MetricRecord({"loss": 1.0 + t})  # noqa: E731
        result = strategy.start(grid, model(), rounds, evaluate_fn=loss)
        strategy.close()
        assert result.evaluate_metrics_serverapp == {t: loss(t, None) for t in range(rounds + 1)}
        return result.arrays or ArrayRecord()

    arrays = run(tmp_path / "run", ROUNDS)
    assert [line for line in caplog.messages if "above 1 of the untrained model" in line]
    statement = json.loads((tmp_path / "run/statement.json").read_text())
    means = noisy_means(update_of, float(statement["noise_std"]), dense_c(statement), DIMENSION)
    expected = by_hand(kind, flat(model()), means)
    # Models are float32 and of size about 1.
    np.testing.assert_allclose(
        flat(arrays), expected, atol=2e-5 if kind.startswith("FedA") else 2e-4
    )
    assert {name: (array.dtype, tuple(array.shape)) for name, array in arrays.items()} == {
        name: ("float32", shape) for name, shape in SHAPES.items()
    }
    run(tmp_path / "stopped", 2)
    assert np.array_equal(flat(run(tmp_path / "stopped", ROUNDS, ignored=0.1)), flat(arrays))


def test_a_callback_that_writes_into_its_arrays_changes_no_message(tmp_path: Path) -> None:
    """The encoded model is shared by all messages of a round and by the evaluation."""

    def spoil(number: int, arrays: ArrayRecord) -> None:
        for array in arrays.values():
            array.data = b""
        arrays.clear()

    expected = released(private(FedAvg(), tmp_path / "plain"), num_rounds=2)
    arrays = released(private(FedAvg(), tmp_path / "run"), num_rounds=2, evaluate_fn=spoil)
    assert np.array_equal(flat(arrays), flat(expected))


class Named(FedAvg):
    """A strategy with a method and an attribute of its own."""

    def save_in(self, folder: str) -> None:
        self.folder = folder


def test_methods_and_attributes_of_the_strategy_are_those_of_the_wrapper(tmp_path: Path) -> None:
    strategy = private(Named(), tmp_path / "run")
    strategy.save_in("first")
    assert strategy.folder == "first"
    strategy.folder = "second"
    assert strategy.inner.folder == "second"  # type: ignore[attr-defined]
    assert not hasattr(strategy, "save_elsewhere")
    with pytest.raises(AttributeError, match=r"strategy\.inner\.aggregate_train\("):
        strategy.aggregate_train(1, [])


def test_everything_that_flower_documents_arrives(tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, object]]] = []

    def note(message: Message, context: Context, call_next: Next) -> Message:
        seen.append((message.metadata.message_type, dict(message.content.config_records["config"])))
        return call_next(message, context)

    stops: list[int] = []

    def should_stop(number: int, result: Result) -> bool:
        assert result.evaluate_metrics_serverapp[number]["round"] == number
        stops.append(number)
        return number == 2

    records: list[float] = []
    result = private(FedProx(proximal_mu=0.2), tmp_path / "run").start(
        grid=clients(mods=[note]),
        initial_arrays=model(),
        train_config=ConfigRecord({"lr": 0.5}),
        evaluate_config=ConfigRecord({"batch": 7}),
        evaluate_fn=lambda t, _: MetricRecord({"round": float(t)}),
        should_stop=should_stop,
        on_round=lambda record: records.append(record.metrics["round"]),
    )
    train = [config for kind, config in seen if kind == "train"]
    assert len(train) == 2 * COHORT
    assert train[0] == {"lr": 0.5, "server-round": 1, "proximal-mu": 0.2}
    assert {kind for kind, _ in seen} == {"train"}
    assert (stops, records) == ([1, 2], [1.0, 2.0])
    assert not result.evaluate_metrics_clientapp
    assert not result.train_metrics_clientapp


def test_integers_and_frozen_arrays_stay_and_tied_ones_are_one(tmp_path: Path) -> None:
    """What is released loads strictly, arrays that stay and both names of one array too."""
    start = model()
    arrays = ArrayRecord(
        {
            **start,
            "again": start["body.weight"],
            "counter": Array(np.array(7, np.int64)),
            "mask": Array(np.array([True, False])),
            "wide": Array(np.zeros(2, np.float64)),
            "stays": Array(np.ones(3, np.float32)),
        }
    )

    def update(user: int) -> np.ndarray:
        """Clients move the copy as well, as torch does with one parameter under two names."""
        once = np.concatenate([update_of(user), np.full(2, 0.01)])
        return np.concatenate([once[:DIMENSION], once[:12], once[DIMENSION:]])

    strategy = private(FedAvg(), tmp_path / "run", tied=True, frozen=("sta*",))
    found = released(strategy, clients(update), initial_arrays=arrays)
    assert {name: array.dtype for name, array in found.items()} == {
        n: a.dtype for n, a in arrays.items()
    }
    for name in ("counter", "mask", "stays"):
        assert np.array_equal(found[name].numpy(), arrays[name].numpy())
    np.testing.assert_array_equal(found["again"].numpy(), found["body.weight"].numpy())
    statement = json.loads((tmp_path / "run/statement.json").read_text())
    once = lambda user: np.concatenate([update_of(user), np.full(2, 0.01)])  # noqa: E731
    means = noisy_means(once, float(statement["noise_std"]), dense_c(statement), DIMENSION + 2)
    trained = ArrayRecord({name: found[name] for name in (*start, "wide")})
    np.testing.assert_allclose(
        flat(trained), np.append(flat(start), [0, 0]) + sum(means), atol=2e-4
    )
    tensors = ReleasedModel.of(tmp_path / "run").tensors
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        name: torch.from_numpy(array.numpy()).dtype for name, array in arrays.items()
    }
    assert torch.equal(tensors["again"], tensors["body.weight"])
    assert load_model(tmp_path / "run").keys() == tensors.keys()


@pytest.mark.parametrize("kind", USELESS)
def test_a_hostile_reply_is_a_zero_vector_of_its_user_alone(kind: str, tmp_path: Path) -> None:
    victim = 5

    def tamper(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        return USELESS[kind](reply) if int(context.node_config["partition-id"]) == victim else reply

    arrays = released(private(FedAvg(), tmp_path / "run"), clients(mods=[tamper]))
    absent = released(
        private(FedAvg(), tmp_path / "zero"),
        clients(lambda user: update_of(user) * (user != victim)),
    )
    np.testing.assert_array_equal(flat(arrays), flat(absent))
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "failures.jsonl").read_text().splitlines()
    ]
    assert [(row["user"], row["stage"]) for row in rows] == 2 * [("user-05", "reply")]
    statement = json.loads((tmp_path / "run/statement.json").read_text())
    assert statement["users_participated"] == USERS


Form = Callable[[dict[str, np.ndarray]], ArrayRecord]


def _renamed(rename: Callable[[str], str]) -> Form:
    return lambda arrays: ArrayRecord(
        {rename(name): Array(array) for name, array in arrays.items()}
    )


def _changed(change: Callable[[np.ndarray], np.ndarray]) -> Form:
    return lambda arrays: ArrayRecord(
        {name: Array(change(array)) for name, array in arrays.items()}
    )


def _with_more(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(array) for name, array in {**arrays, "secret": np.ones(1)}.items()}
    )


#: What clients often send, and words of the line about it if it cannot be used.
FORMS: dict[str, tuple[Form, str]] = {
    "float64": (_changed(np.float64), ""),
    "DataParallel": (_renamed("module.{}".format), ""),
    "compiled": (_renamed("_orig_mod.{}".format), ""),
    "a list": (lambda arrays: ArrayRecord(list(arrays.values())), ""),
    "transposed": (_changed(np.transpose), "of shape (4, 3)"),
    "a short list": (lambda arrays: ArrayRecord([*arrays.values()][:1]), "no array 'body.weight'"),
    "other names": (_renamed("secret {}".format), "no array 'body.weight'"),
    "another array": (_with_more, "The model has ['body.weight', 'body.bias', 'head']"),
    "integers": (_changed(np.int32), "must be float32 or float64 of shape (4, 3)"),
}


@pytest.mark.parametrize("form", FORMS)
def test_common_forms_of_replies_are_taken_or_named(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told before the second round, once for each reason; of one user alone
    nothing.
    """
    change, reason = FORMS[form]
    told: list[int] = []

    def mod(victims: Iterable[int]) -> Callable[[Message, Context, Next], Message]:
        def tamper(message: Message, context: Context, call_next: Next) -> Message:
            told.append(len(caplog.messages))
            reply = call_next(message, context)
            if int(context.node_config["partition-id"]) in victims:
                record: Any = reply.content["arrays"]
                arrays = {name: array.numpy() for name, array in record.items()}
                reply.content["arrays"] = change(arrays)
            return reply

        return tamper

    with caplog.at_level(logging.WARNING, "fedmf"):
        plain = flat(released(private(FedAvg(), tmp_path / "plain")))
        released(private(FedAvg(), tmp_path / "one"), clients(mods=[mod([0])]))
        assert caplog.messages == []
        told.clear()
        other = flat(
            released(private(FedAvg(), tmp_path / "other"), clients(mods=[mod(range(USERS))]))
        )
    if not reason:
        assert np.array_equal(plain, other)
        assert caplog.messages == []
        return
    assert reason in (tmp_path / "one" / "failures.jsonl").read_text()
    (line,) = caplog.messages
    assert line.startswith(f"round 1: {COHORT} of {COHORT} contributions could not be used")
    assert reason in line
    assert "secret " not in line
    assert "int32" not in line
    assert told == [0] * COHORT + [1] * COHORT * (ROUNDS - 1)


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Lines of Flower's own logger, which hands nothing on by itself."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    return lambda: [record.getMessage() for record in caplog.records]


class Saving(FedAvg):
    """As Flower's larger examples are: a loop and an evaluation of their own; it looks at
    results.
    """

    aggregation_is_a_mean = True

    def start(self, *arguments: Any, **named: Any) -> Any:
        return super().start(*arguments, **named)

    def aggregate_train(self, *arguments: Any) -> Any:
        self.saved = super().aggregate_train(*arguments)
        return self.saved


def test_the_screen_has_what_is_public_and_what_will_not_happen(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    strategy = private(Saving(), tmp_path / "run", clipping=MOVING, epsilon=0.01)
    released(strategy, evaluate_fn=lambda t, _: MetricRecord({"length": float(t)}))
    lines = said()
    assert any(line.startswith("fedmf: Saving.start is never called: ") for line in lines)
    assert any("Saving.aggregate_train is called before a round is" in line for line in lines)
    assert not any("configure_evaluate" in line or "train_metrics" in line for line in lines)
    assert sum("made private; clients are not asked to evaluate" in line for line in lines) == 1
    assert any("hardly anything can be learned" in line for line in lines)
    unused = "fraction_train, min_train_nodes and num-examples have no effect"
    sampling = f"{COHORT} of {USERS} users take part in each round, with equal weight; {unused}"
    assert lines.count(f"fedmf: {sampling}") == 1
    rounds = [line for line in lines if re.match(r"fedmf: round \d+/", line)]
    assert len(rounds) == ROUNDS + 1
    assert all("length " in line for line in rounds)
    assert "clip_norm" in rounds[2]
    epsilons = [float(re.findall(r"epsilon ([\d.]+)", line)[0]) for line in rounds[1:]]
    assert epsilons == sorted(epsilons)
    assert any(f"run directory {strategy.run_dir}" in line for line in lines)
    assert not any("Received" in line or "Sampled" in line for line in lines), (
        "counts, or one reply"
    )


def test_true_alone_ends_a_run_and_its_callback_is_named(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    for number, answer in enumerate((1, "yes", [0], np.True_)):
        strategy = private(FedAvg(), tmp_path / f"run{number}")
        other: Any = lambda *_, answer=answer: answer  # noqa: E731
        released(strategy, num_rounds=2, should_stop=other, on_round=other)
        assert strategy.stopped == ""
        assert any(line.startswith("fedmf: round 2/") for line in said())
        kind = type(answer).__name__
        warning = (
            f"fedmf: should_stop must return True or False; got a value of type {kind}, ignored"
        )
        assert said().count(warning) == 1
    for name in ("should_stop", "on_round"):
        strategy = private(FedAvg(), tmp_path / name)
        released(strategy, **{name: lambda *_: True})
        assert strategy.stopped == name
        assert f"fedmf: {name} ended the run after round 1 of {ROUNDS}" in said()


def test_differences_are_noticed_or_taken_if_they_are_declared(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    start = model()
    small = lambda user: 0.5 * update_of(user)  # noqa: E731

    def subtract(message: Message, context: Context, call_next: Next) -> Message:
        sent = message.content.array_records["arrays"]
        reply = call_next(message, context)
        trained = reply.content.array_records["arrays"]
        changes = {name: Array(trained[name].numpy() - sent[name].numpy()) for name in sent}
        reply.content["arrays"] = ArrayRecord(changes)
        return reply

    def warned() -> int:
        return sum("most replies look like differences" in line for line in said())

    models = flat(released(private(FedAvg(), tmp_path / "models"), clients(small)))
    shrunk = lambda user: -0.9 * flat(start) + 0.01 * update_of(user)  # noqa: E731
    released(private(FedAvg(), tmp_path / "shrunk"), clients(shrunk), num_rounds=1)
    zeros = ArrayRecord({name: Array(0 * array.numpy()) for name, array in start.items()})
    grid = clients(small, mods=[subtract])
    zero = private(FedAvg(), tmp_path / "zero")
    released(zero, clients(small), initial_arrays=zeros, num_rounds=1)
    assert warned() == 0
    released(private(FedAvg(), tmp_path / "unsaid"), grid)
    assert warned() == 1
    declared = private(FedAvg(), tmp_path / "declared", replies="differences")
    np.testing.assert_allclose(flat(released(declared, grid)), models, atol=1e-5)
    assert warned() == 1
    with pytest.raises(ConfigError, match="replies must be 'models' or 'differences'; got 'both'"):
        private(FedAvg(), tmp_path / "other", replies="both")


def test_a_simulation_that_is_there_gets_company_and_a_sentence(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    """Its nodes are gone, so it cannot go on: nothing of it is touched."""
    whole = flat(released(private(FedAvg(), tmp_path / "run")))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    earlier = [str(tmp_path / "run")]
    for number in (2, 3):
        again = private(FedAvg(), tmp_path / "run")
        assert again.run_dir == tmp_path / f"run-{number}"
        assert np.array_equal(flat(released(again)), whole)
        earlier.append(str(again.run_dir))
        assert any(f"account {' '.join(earlier)}. With mods=" in line for line in said())
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_an_interrupted_run_says_how_it_continues(
    said: Callable[[], list[str]], tmp_path: Path
) -> None:
    def interrupt(record: Any) -> None:
        if record.rounds == 2:
            raise KeyboardInterrupt

    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    named = {"users": ClientReportedIdentity(USER_LIST)}
    for name, options, advice in (("named", named, "the same call"), ("new", {}, "it cannot be")):
        strategy = private(FedAvg(), tmp_path / name, **options)
        with pytest.raises(KeyboardInterrupt):
            released(strategy, grid, on_round=interrupt)
        strategy.close()
        assert said()[-1].startswith(f"fedmf: interrupted after round 2 of {ROUNDS}; {advice}")


@pytest.mark.parametrize(
    ("keys", "difference"),
    [
        ({"epsilon": 9.0}, "privacy.epsilon"),
        ({"users": ClientReportedIdentity(USER_LIST[::-1])}, "task.user_list"),
        ({"server_optimizer": Sgd()}, "server"),
        ({"proximal_mu": 0.5}, r"server.options.proximal_mu is '0.1', not '0.5'"),
    ],
)
def test_another_run_is_not_continued(
    keys: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    """Cohorts are drawn by place on the user list: another order would ask users too soon again."""
    said = {"users": ClientReportedIdentity(USER_LIST)}
    grid = InProcessGrid(saying(lambda user, _: update_of(user)), nodes=USERS)
    released(private(FedProx(proximal_mu=0.1), tmp_path / "run", **said), grid, num_rounds=1)
    other = FedProx(proximal_mu=keys.pop("proximal_mu", 0.1))
    with pytest.raises(ConfigError, match=f"holds another run: its {difference}"):
        released(private(other, tmp_path / "run", **{**said, **keys}), grid)


RUNS: dict[str, dict[str, Any]] = {
    "second moments": {"server": JmeAdam(learning_rate=0.05)},
    "a moving clip norm": {"clipping": MOVING},
    "available cohorts": {
        "cohorts": AvailableCohorts(
            rounds=12, users_per_round=3, min_separation=4, max_participations=2
        ),
        "mechanism": "identity",
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_options_give_what_a_run_gives(name: str, tmp_path: Path) -> None:
    same_as_a_run(
        dataclasses.replace(small_run(TASK, mechanism="bisr", epsilon=20.0), **RUNS[name]), tmp_path
    )


def none_of_flower(name: str) -> Any:
    make = getattr(flower, name)
    return make(client_learning_rate=0.1) if name == "QFedAvg" else make()


class Own(older.FedAvg):
    """Of the older interface."""


class Watching(FedAvg):
    """Replaces what it is judged by, and says nothing of it."""

    def aggregate_train(self, *arguments: Any) -> Any:
        return super().aggregate_train(*arguments)


def used(memory: str) -> FedAvgM:
    inner = FedAvgM()
    setattr(inner, memory, [np.zeros(3)])
    return inner


WRAPPED = flower.DifferentialPrivacyServerSideFixedClipping
REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    **{
        name: (lambda name=name: none_of_flower(name), {}, f"got {name} of flwr.serverapp.strategy")
        for name in ("FedMedian", "Krum", "QFedAvg")
    },
    "wrapped": (
        lambda: WRAPPED(FedAvg(), 1.0, 1.0, 2),
        {},
        "aggregates by something other than a mean",
    ),
    "an older one": (Own, {}, "or uses messages of Flower's older interface"),
    "a subclass": (Watching, {}, "give it the attribute aggregation_is_a_mean = True"),
    "used": (lambda: used("momentum_vector"), {}, "must be new"),
    "two rules": (FedAdam, {"server_optimizer": Sgd()}, "must be one without a server rule"),
    "no cohorts to amplify": (
        FedAvg,
        {"amplified": True},
        "cohorts must be sampled for an amplified run",
    ),
    "mechanism": (FedAvg, {"mechanism": "none"}, "mechanism"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_private_is_refused_at_construction(name: str, tmp_path: Path) -> None:
    inner, keys, message = REFUSED[name]
    with pytest.raises((ConfigError, ValueError), match=re.escape(message)) as raised:
        private(inner(), tmp_path / "run", **keys)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arrays", "keys", "message"),
    [
        ({"bn.running_mean": np.zeros(2, np.float32)}, {}, "statistics of a normalization layer"),
        ({"w": np.zeros(2, np.complex64)}, {}, "floating type up to 64 bits"),
        ({"n": np.zeros(2, np.int64)}, {}, "at least one of a floating type"),
        ({"w": np.zeros(2, np.float32)}, {"frozen": ("v.*",)}, "got 'v.*', which matches none"),
        ({"w": np.full(2, np.nan, np.float32)}, {}, "arrays must be finite in float32"),
        ({"w": np.arange(3.0), "v": np.arange(3.0)}, {}, "'w' and 'v' hold the same numbers"),
    ],
)
def test_impossible_models_are_refused_and_leave_nothing(
    arrays: dict[str, np.ndarray], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    strategy = private(FedAvg(), tmp_path / "run", **keys)
    with pytest.raises(ConfigError, match=re.escape(message)):
        strategy.start(grid=InProcessGrid(ClientApp(), nodes=USERS), initial_arrays=record)
    assert not (tmp_path / "run").exists()


def test_more_rounds_or_nodes_than_planned_are_refused_before_anybody_is_asked(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ConfigError, match=f"num_rounds must be at most the horizon n={ROUNDS}; got 9"
    ):
        released(
            private(FedAvg(), tmp_path / "run"),
            InProcessGrid(ClientApp(), nodes=USERS),
            num_rounds=9,
        )
    for nodes in (USERS - 1, USERS + 1):
        with pytest.raises(ConfigError, match="needs as many nodes"):
            released(
                private(FedAvg(), tmp_path / str(nodes)), InProcessGrid(ClientApp(), nodes=nodes)
            )


def array(*values: float) -> Array:
    return Array(np.array(values, np.float32))


ONES = array(1, 1, 1)
ZEROS = array(0, 0, 0)
COUNT = Array(np.array(0, np.int64))
KERNEL = Array(np.arange(12, dtype=np.float32).reshape(4, 3))


@pytest.mark.parametrize(
    ("arrays", "statistics"),
    [
        (
            [KERNEL, array(2, 3, 1), array(1, 5, 2), array(7, 2, 9), array(1, 8, 4), COUNT],
            "'3', '4'",
        ),
        ([KERNEL, ONES, ZEROS, ZEROS, ONES], "'3', '4'"),  # Keras
        ([KERNEL, ONES, ZEROS, KERNEL, ONES, ZEROS], ""),  # layer normalization
        ([KERNEL, array(1, 2), KERNEL, COUNT], ""),  # some other counter
    ],
)
def test_statistics_in_a_list_of_arrays_are_refused(arrays: list[Array], statistics: str) -> None:
    record = ArrayRecord({str(place): array for place, array in enumerate(arrays)})
    if not statistics:
        ArrayLayout.of(record, tied=False)
        return
    with pytest.raises(
        ConfigError, match=f"^arrays {statistics} hold statistics of a normalization layer"
    ):
        ArrayLayout.of(record, tied=False)
