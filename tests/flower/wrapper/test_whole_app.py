"""One Flower app, clients untouched: in this process, on Flower's simulation engine, on a SuperLink."""

import difflib
import shutil
from pathlib import Path

import pytest
import torch
from support.flower_network import (
    flower_environment,
    flwr_run_simulation,
)

from fedmf import load_model
from fedmf.flower import run_app

APP = Path(__file__).parents[3] / "configs/start/flower_app"
NODES, ROUNDS = 3, 2


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "plain_server_app.py")
    return Path(shutil.copytree(APP, tmp_path / "app", ignore=ignored))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model that `run_app` makes."""
    return made(tmp_path_factory.mktemp("app") / "run", {"num-server-rounds": ROUNDS})


def made(place: Path, config: dict[str, int]) -> dict[str, torch.Tensor]:
    run_app(APP, num_supernodes=NODES, run_config={**config, "run-dir": str(place)})
    assert (place / "failures.jsonl").read_text() == ""
    return load_model(place)


def same(place: Path, expected: dict[str, torch.Tensor]) -> None:
    assert (place / "failures.jsonl").read_text() == ""
    model = load_model(place)
    assert model.keys() == expected.keys()
    for name, values in model.items():
        # Entries of size about 1; the engines' clients run the same single-threaded kernels.
        torch.testing.assert_close(values, expected[name], rtol=0, atol=2e-6)


def test_the_server_changes_by_five_lines() -> None:
    plain, private = (
        (APP / "digits_app" / name).read_text().splitlines()
        for name in ("plain_server_app.py", "server_app.py")
    )
    changes = [line for line in difflib.ndiff(plain, private) if line[0] in "+-"]
    assert [line[0] for line in changes] == 5 * ["+"]


def test_the_model_loads_and_has_learnt(tmp_path: Path) -> None:
    model = made(tmp_path / "run", {})
    from digits_app.task import Net, initial_model, load_data  # run_app found the app's folder
    from digits_app.task import test as judged

    net = Net()
    net.load_state_dict(model)
    _, _, x, y = load_data(0, 1)
    assert judged(net, x, y)[0] < judged(initial_model(), x, y)[0] - 0.3


@pytest.mark.weekly
@pytest.mark.deployment
def test_on_flowers_simulation_engine(
    app_dir: Path, expected: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    env = flower_environment(tmp_path)
    config = {"run-dir": str(tmp_path / "run"), "num-server-rounds": ROUNDS}
    done = flwr_run_simulation(app_dir, env, nodes=NODES, run_config=config, timeout=3000)
    assert done.ok, done.details + done.output[-3000:]
    same(tmp_path / "run", expected)
