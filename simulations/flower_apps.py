"""Make Flower's example apps private by a few lines on their server, and run them.

    git clone --filter=blob:none https://github.com/adap/flower
    python simulations/flower_apps.py flower [APP ...] [--json]

The lines import `CorrelatedNoise` and put it around the app's strategy; clients and models stay as they are.
Data are made up in the shape of the app's own, in the cache of the library `datasets`. Each app runs three
rounds with `run_app` in a process of its own, and its own code loads the released model. Strategies that
cannot be private in this way must be refused in one line before anything is spent. An app is left out where
a package that it needs is not installed. Exit code 1 if an app did not do what it should.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
#: The commit whose apps these are.
COMMIT: Final = "fdef7afb1dca3030553be302366cfd285ed6632c"
ROUNDS: Final = 3
FEDAVG: Final = "from flwr.serverapp.strategy import FedAvg"
START: Final = "    result = strategy.start("

#: Columns by the name that apps use: the shape of a picture, True for a number, classes for a label.
TABLES: Final[dict[str, dict[str, Any]]] = {
    "uoft-cs/cifar10": {"img": (32, 32, 3), "label": 10},
    "ylecun/mnist": {"image": (28, 28), "label": 10},
    "hitorilabs/iris": {
        **dict.fromkeys(("petal_length", "petal_width", "sepal_length", "sepal_width"), True),
        "species": 3,
    },
}


@dataclass(frozen=True)
class App:
    """An app.

    Args:
        name: its folder below ``examples/``.
        server: the file that is changed.
        loads: code of the app that takes the released model, ``arrays`` by name or ``ndarrays`` in order.
        asked: users a round.
        users: N.
        data: the table that is made up.
        config: values of the run config that are replaced.
        after: the line after which the import stands.
        instead: the strategy in place of the app's own FedAvg.
        refused: words of the line that refuses it; none if the app becomes private.
    """

    name: str
    server: str
    loads: str = ""
    asked: int = 8
    users: int = 8
    data: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    after: str = FEDAVG
    instead: str = ""
    refused: str = ""

    def edited(self, text: str) -> str:
        """The server with the lines that make it private."""
        wrapper = (
            "    from fedmf import CyclicCohorts, UserLevel, flower\n"
            "    strategy = flower.CorrelatedNoise(strategy,\n"
            "        UserLevel(epsilon=8.0, delta=1e-5, clip_norm=1.0),\n"
            f"        CyclicCohorts(rounds={ROUNDS}, users_per_round={self.asked}), users={self.users})\n"
        )
        edits = [(START, wrapper + START)]
        if self.instead:
            edits.append((FEDAVG, "from flwr.serverapp.strategy import *"))
            edits.append(("    strategy = FedAvg(", f"    strategy = {self.instead}\n    FedAvg("))
        for old, new in edits:
            if text.count("\n" + old) != 1:
                raise ValueError(f"{self.server} must have one line that begins with {old!r}.")
            text = text.replace("\n" + old, "\n" + new)
        return text


def net(module: str, name: str = "Net") -> str:
    """Code that gives the released model to a module of PyTorch."""
    return f"from {module}.task import {name}\n{name}().load_state_dict(arrays, strict=True)"


_SILENT: Final = {"num-server-rounds": ROUNDS, "fraction-evaluate": 0.0}
_ROUNDS: Final = {"num-server-rounds": ROUNDS}
_PYTORCH: Final = "pytorchexample/server_app.py"
_CIFAR: Final = "uoft-cs/cifar10"
_NO_MEAN: Final = "aggregates by something else than a mean"

APPS: Final = (
    App(
        "quickstart-numpy", "quickstart_numpy/server_app.py",
        "from quickstart_numpy.task import get_dummy_model\n"
        "assert [a.shape for a in ndarrays] == [a.shape for a in get_dummy_model()]",
        config=_ROUNDS,
    ),
    App(
        "quickstart-sklearn", "sklearnexample/server_app.py",
        "from sklearnexample.task import *\n"
        "model = create_log_reg_and_instantiate_parameters('l2')\n"
        "set_model_params(model, ndarrays).predict(np.zeros((1, 4)))",
        4, 4, "hitorilabs/iris", _ROUNDS,
    ),
    App("quickstart-pytorch", _PYTORCH, net("pytorchexample"), 4, 4, _CIFAR, _SILENT),
    App(
        "quickstart-pytorch-lightning", "pytorchlightning_example/server_app.py",
        net("pytorchlightning_example", "LitAutoEncoder"), 4, 8, "ylecun/mnist", _ROUNDS,
    ),
    App(
        "quickstart-tensorflow", "tfexample/server_app.py",
        "from tfexample.task import load_model\nload_model().set_weights(ndarrays)",
        4, 8, _CIFAR, {**_ROUNDS, "fraction-train": 0.5},
    ),
    App(
        "quickstart-jax", "jaxexample/server_app.py",
        "from jaxexample.task import create_train_state, set_params\n"
        "set_params(create_train_state(0.1), ndarrays)",
        2, 8, "ylecun/mnist", {**_SILENT, "batch-size": 8},
    ),
    App("federated-vae", "fedvaeexample/server_app.py", net("fedvaeexample"), 8, 8, _CIFAR, _ROUNDS),
    App("opacus", "opacus_fl/server_app.py", net("opacus_fl"), 8, 8, _CIFAR, _ROUNDS),
    App("quickstart-pytorch", _PYTORCH, data=_CIFAR, instead="FedMedian()", refused=_NO_MEAN),
    App("quickstart-pytorch", _PYTORCH, data=_CIFAR, instead="Krum(num_malicious_nodes=1)", refused=_NO_MEAN),
    App(
        "quickstart-pytorch", _PYTORCH, data=_CIFAR,
        instead="DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.6, 1.0, 8)",
        refused=_NO_MEAN,
    ),
    App("quickstart-xgboost", "quickstart_xgboost/server_app.py", refused=_NO_MEAN),
    App("quickstart-monai", "monaiexample/server_app.py", refused="statistics of a normalisation layer"),
)  # fmt: skip


def make_up(name: str, cache: Path, count: int = 320) -> None:
    """Put a table where the library `datasets` looks for one of that name when it is offline."""
    import datasets
    import pyarrow as pa

    owner, _, short = name.rpartition("/")
    folder = cache / f"{owner}___{short}" / "default" / "0.0.0" / "made-up"
    folder.mkdir(parents=True, exist_ok=True)
    rng, splits = np.random.default_rng(0), datasets.SplitDict(dataset_name=short)
    classes = next(kind for kind in TABLES[name].values() if kind is not True and isinstance(kind, int))
    labels, columns, kinds = np.arange(count) % classes, {}, {}
    for key, kind in TABLES[name].items():
        if kind is True:
            columns[key] = (1.0 + labels + 0.3 * rng.standard_normal(count)).tolist()
            kinds[key] = datasets.Value("float64")
        elif isinstance(kind, int):
            columns[key], kinds[key] = labels.tolist(), datasets.ClassLabel(num_classes=kind)
        else:
            columns[key] = [rng.integers(0, 40, kind, np.uint8) + np.uint8(20 * label) for label in labels]
            kinds[key] = datasets.Image()
    features = datasets.Features(kinds)
    table = datasets.Dataset.from_dict(columns, features=features).data.table
    for part in ("train", "test"):
        file = str(folder / f"{short}-{part}.arrow")
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        splits.add(datasets.SplitInfo(part, table.nbytes, count, dataset_name=short))
    datasets.DatasetInfo(
        features=features, splits=splits, config_name="default", dataset_name=short, version="0.0.0"
    ).write_to_directory(str(folder))


def one(app: App, folder: Path) -> dict[str, Any]:
    """Run an app in this process; what became of it."""
    from fedmf import load_model
    from fedmf.errors import ConfigError
    from fedmf.flower import run_app

    runs = Path.home() / ".fedmf" / "runs"
    try:
        run_app(folder, num_supernodes=app.users, run_config=app.config, seed=0)
    except ConfigError as error:
        if "No module named" in str(error):
            return {"outcome": f"left out: {error}", "good": True}
        good = app.refused and app.refused in str(error) and "\n" not in str(error) and not runs.exists()
        return {"outcome": f"refused: {error}", "good": bool(good)}
    (run,) = runs.iterdir()
    arrays = load_model(run)
    sys.path.insert(0, str(folder))
    exec(
        app.loads, {"np": np, "arrays": arrays, "ndarrays": [np.asarray(value) for value in arrays.values()]}
    )
    failures = (run / "failures.jsonl").read_text() if (run / "failures.jsonl").exists() else ""
    outcome = f"private, the model loads{failures and ': a client failed'}"
    return {"outcome": outcome, "good": not failures and not app.refused}


def run(number: int, checkout: Path) -> dict[str, Any]:
    """Run an app in a process of its own."""
    app = APPS[number]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "home").mkdir()
        folder = place / app.name
        shutil.copytree(checkout / "examples" / app.name, folder)
        server = folder / app.server
        server.write_text(app.edited(server.read_text()))
        if app.data:
            make_up(app.data, place / "hub" / "datasets")
        passed = {
            key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR", "PYTHONPATH") if key in os.environ
        }
        environment = passed | {
            "HOME": str(place / "home"), "HF_HOME": str(place / "hub"), "HF_HUB_OFFLINE": "1",
            "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, __file__, str(folder), "--one", str(number)]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            return {"outcome": done.stderr.strip().splitlines()[-1], "good": False}
        return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help=f"of Flower's repository, at {COMMIT[:10]}")
    parser.add_argument("apps", nargs="*", help="names; all by default")
    parser.add_argument("--json", action="store_true", help="one JSON object per app")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one(APPS[given.one], given.checkout)))
        return 0
    good = True
    for number, app in enumerate(APPS):
        if given.apps and app.name not in given.apps:
            continue
        row = {"app": app.name, "strategy": app.instead or "its own", **run(number, given.checkout)}
        good = good and row["good"]
        text = f"{'ok  ' if row['good'] else 'FAIL'} {app.name}, {row['strategy']}: {row['outcome']}"
        print(json.dumps(row) if given.json else text, flush=True)
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
