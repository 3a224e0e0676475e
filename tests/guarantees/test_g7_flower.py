"""G7: FedAdam in the wrapper is Adam of the noised mean; a SuperLink with keys trains the same
model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam
from support.certificates import make_credentials
from support.flower_network import flower_environment, flwr_run, superlink, supernodes
from support.normals import normals

from fedmf import CyclicCohorts, UserLevel, load_model
from fedmf.flower import CorrelatedNoise, InProcessGrid, run_app
from fedmf.flower.inner_rule import InnerRule
from fedmf.ledger.ledger import Ledger
from fedmf.noise.key import Domain
from guarantees.small import CLIP, bisr, clipped

NODES = 3
SHAPES = {"body.weight": (4, 3), "body.bias": (4,), "head": (5,)}
DIMENSION = 21
USERS = 6
ROUNDS = 6
SEED = 3
APP = Path(__file__).parents[2] / "configs/start/flower_app"


def update_of(user: int) -> np.ndarray:
    x = np.random.default_rng([7, user]).standard_normal(DIMENSION)
    return x / np.linalg.norm(x) * (0.2 + 0.15 * user)


def start() -> ArrayRecord:
    rng = np.random.default_rng(1)
    return ArrayRecord(
        {name: Array(rng.standard_normal(s).astype("f")) for name, s in SHAPES.items()}
    )


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in arrays.values()])


def adding() -> ClientApp:
    """Clients that add what is theirs to what they get, and know nothing of privacy."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        added = update_of(int(context.node_config["partition-id"]))
        sent = {}
        at = 0
        for name, array in message.content["arrays"].items():  # type: ignore[union-attr]
            value = array.numpy()  # type: ignore[union-attr]
            sent[name] = Array(
                (value + added[at : at + value.size].reshape(value.shape)).astype("f")
            )
            at += value.size
        return Message(RecordDict({"arrays": ArrayRecord(sent)}), reply_to=message)

    return app


def check_fed_adam(folder: Path) -> None:
    """All six users in every round: θ_n by Reddi et al. (2021), in float64, of (Σ clip(x_u) +
    C⁻¹z)/m.
    """
    strategy = CorrelatedNoise(
        FedAdam(),
        UserLevel(epsilon=8.0, delta=1e-5, clip_norm=CLIP, noise_seed=SEED),
        CyclicCohorts(rounds=ROUNDS, users_per_round=USERS),
        users=USERS,
        mechanism="bisr",
        run_dir=folder / "app",
    )
    grid = InProcessGrid(adding(), nodes=USERS)
    found = strategy.start(grid=grid, initial_arrays=start(), num_rounds=ROUNDS).arrays
    assert found is not None
    said = strategy.statement().to_dict()
    std = said["clip_norm"] * said["noise_multiplier"] * said["sensitivity"]
    total = clipped(np.stack([update_of(u) for u in range(USERS)])).sum(0)
    z = normals(SEED, Domain.TRAINING, ROUNDS, DIMENSION)
    C = bisr(ROUNDS, said["params"]["bands"])
    means = (total + std * np.linalg.solve(C, z)) / USERS
    theta = flat(start())
    m = np.zeros(DIMENSION)
    v = np.zeros(DIMENSION)
    for t, u in enumerate(means):
        m = 0.9 * m + 0.1 * u
        v = 0.99 * v + 0.01 * u**2
        # Flower's correction of the bias has one round more in its powers than Kingma and Ba.
        rate = 0.1 * np.sqrt(1 - 0.99 ** (t + 2)) / (1 - 0.9 ** (t + 2))
        theta = theta + rate * m / (np.sqrt(v) + 1e-3)
    assert np.abs(flat(found) - theta).max() < 2e-5  # models are float32 and of size about 1


def test_fed_adam_is_adam_of_the_noised_mean(tmp_path: Path) -> None:
    check_fed_adam(tmp_path)


def test_noise_after_the_optimizer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = InnerRule.step
    z = torch.from_numpy(normals(SEED, Domain.TRAINING, ROUNDS, DIMENSION))

    def late(self, t, parameters, release, state):
        # Some noise of the right size is added to the model instead of the mean.
        noise = z[t].to(release.mean) * release.mean_variance**0.5
        without = type(release)(release.mean - noise, release.mean_variance)
        model, kept = right(self, t, parameters, without, state)
        return model + noise.to(model), kept

    monkeypatch.setattr(InnerRule, "step", late)
    with pytest.raises(AssertionError):
        check_fed_adam(tmp_path)


#: A client without torch, whose process starts quickly; the third node has nothing to give.
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    part, sent = int(context.node_config["partition-id"]), {}
    if part == 2:
        raise ValueError("absent")
    for name, array in message.content["arrays"].items():
        value = array.numpy()
        update = np.sin(np.arange(value.size) + part).reshape(value.shape)
        sent[name] = Array(value + update.astype("f"))
    return Message(RecordDict({"arrays": ArrayRecord(sent)}), reply_to=message)
"""


@pytest.mark.deployment
def test_a_superlink_with_keys_trains_the_same_model_and_serves_enrolled_nodes_alone(
    tmp_path: Path,
) -> None:
    """TLS, and nodes that sign what they say. The tutorial's server app trains with two of three
    users, as in one process; the third node is authenticated and not enrolled, the third enrolled
    key is not there.
    """
    ignored = shutil.ignore_patterns("__pycache__", "plain_server_app.py")
    app_dir = Path(shutil.copytree(APP, tmp_path / "app", ignore=ignored))
    server = app_dir / "digits_app" / "server_app.py"
    plain = server.read_text().replace("fraction_evaluate=0.5", "fraction_evaluate=0.0")
    server.write_text(plain.replace("clip_norm=1.0", "clip_norm=1.0, noise_seed=1"))
    (app_dir / "digits_app" / "client_app.py").write_text(CLIENT)
    config: dict[str, str | int | float | bool] = {
        "run-dir": str(tmp_path / "expected"),
        "num-server-rounds": 2,
        "num-users": NODES,
    }
    run_app(app_dir, num_supernodes=NODES, run_config=config)
    env = flower_environment(tmp_path)
    credentials = make_credentials(tmp_path / "credentials", NODES)
    absent = make_credentials(tmp_path / "absent", 1).node(0)
    config["enrolled"] = enrol([absent, credentials.node(1), credentials.node(0)], app_dir)
    with (
        superlink(env, tmp_path / "net", credentials=credentials) as link,
        supernodes(env, link, NODES, credentials) as logs,
    ):
        done = flwr_run(
            app_dir, env, link.name, config | {"run-dir": str(tmp_path / "run")}, timeout=3000
        )
        asked = [log.read_text().count("Received") > 0 for log in logs]
    assert done.ok, done.details + done.output[-3000:]
    model = load_model(tmp_path / "run")
    expected = load_model(tmp_path / "expected")
    assert model.keys() == expected.keys()
    for name, values in model.items():
        torch.testing.assert_close(values, expected[name], rtol=0, atol=2e-6)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert sorted(ledger.histories.names) == ["clinic-1", "clinic-2"]
    assert asked == [True, True, False], [log.read_text()[-2000:] for log in logs]


def enrol(keys: list[Path], app_dir: Path) -> str:
    """Enroll the nodes with these keys as users; the file, and the app waits for two of them."""
    file = app_dir.parent / "enrolled-keys"
    lines = [
        f"{key.with_suffix('.pub').read_text().strip()} clinic-{i}\n" for i, key in enumerate(keys)
    ]
    file.write_text("".join(lines))
    server = app_dir / "digits_app" / "server_app.py"
    execution = """users=users,
        execution=fedmf.Execution(
            messages="per-user", round_timeout=3600.0, handshake_timeout=5.0, min_users=2
        ),"""
    server.write_text("import fedmf\n" + server.read_text().replace("users=users,", execution))
    return str(file)
