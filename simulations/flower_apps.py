"""Make Flower's example apps private by a few lines on their server, and run them.

    git clone --filter=blob:none https://github.com/adap/flower
    python simulations/flower_apps.py flower [APP ...] [--json]

The lines import `CorrelatedNoise` and put it around the app's strategy; clients and models stay as
they are. Data are made up in the shape of the app's own, in the cache of the library `datasets`.
Each app runs two rounds of two users in a process of its own, with `run_app`, or on an
`InProcessGrid` where nodes hold their own data, and its own code loads the released model; ε is
1000, since noise for so few users makes some models overflow. Strategies that cannot be private in
this way must be refused in one line before anything is spent. An app is left out where something
that it imports is not there: a package, or a name that Flower does not have any more. Exit code 1
if an app did not do what it should.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
#: The commit whose apps these are.
COMMIT: Final = "fdef7afb1dca3030553be302366cfd285ed6632c"
ROUNDS: Final = 2
FEDAVG: Final = "from flwr.serverapp.strategy import FedAvg"
START: Final = "    result = strategy.start("

#: Columns by the name that apps use: the shape of a picture, or what a cell is.
TABLES: Final[dict[str, dict[str, Any]]] = {
    "uoft-cs/cifar10": {"img": (32, 32, 3), "label": "label"},
    "ylecun/mnist": {"image": (28, 28), "label": "label"},
    "zalando-datasets/fashion_mnist": {"image": (28, 28), "label": "label"},
    "stanfordnlp/imdb": {"text": "words", "label": "label"},
    "hitorilabs/iris": {
        **dict.fromkeys(("petal_length", "petal_width", "sepal_length", "sepal_width"), "number"),
        "species": "label",
    },
    "scikit-learn/adult-census-income": {
        **dict.fromkeys(
            ("age", "fnlwgt", "education.num", "capital.gain", "capital.loss"), "number"
        ),
        "hours.per.week": "number",
        **dict.fromkeys(
            ("workclass", "education", "marital.status", "occupation", "relationship"), "words"
        ),
        **dict.fromkeys(("race", "sex", "native.country"), "words"),
        "income": "text label",
    },
}
CLASSES: Final = dict.fromkeys(TABLES, 10) | {
    "hitorilabs/iris": 3,
    "stanfordnlp/imdb": 2,
    "scikit-learn/adult-census-income": 2,
}
_WORDS: Final = ("bad", "good", "dull", "bright", "slow", "quick")


@dataclass(frozen=True)
class App:
    """An app.

    Args:
        name: its folder below ``examples/``.
        server: the file that is changed.
        loads: code of the app that takes the released model, ``arrays`` by name or ``ndarrays`` in
            order.
        asked: users a round.
        users: N.
        data: the table that is made up.
        config: values of the run config that are replaced.
        instead: the strategy in place of the app's own FedAvg.
        refused: words of the line that refuses it; none if the app becomes private.
        prepare: a script of the app with its words, which puts the data of each node into a folder.
        node_data: that folder's name before the number of the node, from 1 on.
    """

    name: str
    server: str
    loads: str = ""
    asked: int = 2
    users: int = 2
    data: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    instead: str = ""
    refused: str = ""
    prepare: tuple[str, ...] = ()
    node_data: str = ""

    def edited(self, text: str) -> str:
        """The server with the lines that make it private."""
        wrapper = (
            "    from fedmf import CyclicCohorts, UserLevel, flower\n    strategy ="
            " flower.CorrelatedNoise(strategy,\n        UserLevel(epsilon=1000.0, delta=1e-5,"
            f" clip_norm=1.0),\n        CyclicCohorts(rounds={ROUNDS},"
            f" users_per_round={self.asked}), users={self.users})\n"
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
        "quickstart-numpy",
        "quickstart_numpy/server_app.py",
        "from quickstart_numpy.task import get_dummy_model\n"
        "assert [a.shape for a in ndarrays] == [a.shape for a in get_dummy_model()]",
        2,
        4,
        config=_ROUNDS,
    ),
    App(
        "quickstart-sklearn",
        "sklearnexample/server_app.py",
        "from sklearnexample.task import *\n"
        "model = create_log_reg_and_instantiate_parameters('l2')\n"
        "set_model_params(model, ndarrays).predict(np.zeros((1, 4)))",
        data="hitorilabs/iris",
        config=_ROUNDS,
    ),
    App("quickstart-pytorch", _PYTORCH, net("pytorchexample"), data=_CIFAR, config=_SILENT),
    App(
        "quickstart-pytorch-lightning",
        "pytorchlightning_example/server_app.py",
        net("pytorchlightning_example", "LitAutoEncoder"),
        data="ylecun/mnist",
        config=_ROUNDS,
    ),
    App(
        "quickstart-tensorflow",
        "tfexample/server_app.py",
        "from tfexample.task import load_model\nload_model().set_weights(ndarrays)",
        data=_CIFAR,
        config=_ROUNDS,
    ),
    App(
        "quickstart-jax",
        "jaxexample/server_app.py",
        "from jaxexample.task import create_train_state, set_params\n"
        "set_params(create_train_state(0.1), ndarrays)",
        data="ylecun/mnist",
        config={**_SILENT, "batch-size": 8},
    ),
    App(
        "quickstart-huggingface",
        "huggingface_example/server_app.py",
        "from huggingface_example.task import get_model\n"
        "get_model(f'{hub}/tiny-bert').load_state_dict(arrays, strict=True)",
        data="stanfordnlp/imdb",
        config={**_SILENT, "model-name": "{hub}/tiny-bert"},
    ),
    App(
        "fl-tabular",
        "fltabular/server_app.py",
        net("fltabular", "IncomeClassifier"),
        data="scikit-learn/adult-census-income",
        config=_ROUNDS,
    ),
    App(
        "quickstart-pennylane",
        "quickstart_pennylane/server_app.py",
        "from quickstart_pennylane.task import QuantumNet\nQuantumNet().load_state_dict(arrays)",
        data=_CIFAR,
        config={**_SILENT, "local-epochs": 1},
    ),
    App(
        "supernode-authentication",
        "authexample/server_app.py",
        net("authexample"),
        data=_CIFAR,
        config=_SILENT,
        prepare=("prepare_dataset.py", "2"),
        node_data="cifar10_part_",
    ),
    App(
        "embedded-devices",
        "embeddedexample/server_app.py",
        net("embeddedexample"),
        data="zalando-datasets/fashion_mnist",
        config=_SILENT,
        prepare=("generate_dataset.py", "--num-supernodes", "2"),
        node_data="fashionmnist_part_",
    ),
    App("advanced-pytorch", "pytorch_example/server_app.py", config=_SILENT),
    App(
        "federated-vae",
        "fedvaeexample/server_app.py",
        net("fedvaeexample"),
        data=_CIFAR,
        config=_ROUNDS,
    ),
    App("opacus", "opacus_fl/server_app.py", net("opacus_fl"), data=_CIFAR, config=_ROUNDS),
    App("quickstart-pytorch", _PYTORCH, data=_CIFAR, instead="FedMedian()", refused=_NO_MEAN),
    App(
        "quickstart-pytorch",
        _PYTORCH,
        data=_CIFAR,
        instead="Krum(num_malicious_nodes=1)",
        refused=_NO_MEAN,
    ),
    App(
        "quickstart-pytorch",
        _PYTORCH,
        data=_CIFAR,
        instead="DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.6, 1.0, 8)",
        refused=_NO_MEAN,
    ),
    App("quickstart-xgboost", "quickstart_xgboost/server_app.py", refused=_NO_MEAN),
    App(
        "quickstart-monai",
        "monaiexample/server_app.py",
        refused="statistics of a normalisation layer",
    ),
)


def make_up(name: str, cache: Path, count: int = 60) -> None:
    """Put a table where the library `datasets` looks for one of that name when it is offline."""
    import datasets
    import pyarrow as pa

    owner, _, short = name.rpartition("/")
    folder = cache / f"{owner}___{short}" / "default" / "0.0.0" / "made-up"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    splits = datasets.SplitDict(dataset_name=short)
    labels = np.arange(count) % CLASSES[name]
    columns = {}
    kinds = {}
    for key, kind in TABLES[name].items():
        if kind == "number":
            columns[key] = (1.0 + labels + 0.3 * rng.standard_normal(count)).tolist()
            kinds[key] = datasets.Value("float64")
        elif kind == "label":
            columns[key] = labels.tolist()
            kinds[key] = datasets.ClassLabel(num_classes=CLASSES[name])
        elif kind in ("words", "text label"):
            drawn = labels if kind == "text label" else rng.integers(0, len(_WORDS), count)
            columns[key] = [_WORDS[place] for place in drawn]
            kinds[key] = datasets.Value("string")
        else:
            columns[key] = [
                rng.integers(0, 40, kind, np.uint8) + np.uint8(20 * label) for label in labels
            ]
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


def tiny_bert(folder: Path) -> None:
    """A BERT with a hidden size of 16 and a vocabulary of `_WORDS`, as a folder of a model."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    size = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    BertForSequenceClassification(
        BertConfig(vocab_size=len(words), num_labels=2, **size)
    ).save_pretrained(folder)


def execute(app: App, folder: Path, config: dict[str, Any]) -> None:
    """Run an app in this process; where nodes hold their own data, on a grid with their node
    configs.
    """
    from fedmf.flower import InProcessGrid, run_app
    from fedmf.flower.compat import load_object, server_context

    if not app.prepare:
        run_app(folder, num_supernodes=app.users, run_config=config, seed=0)
        return
    subprocess.run(
        [sys.executable, folder / app.prepare[0], *app.prepare[1:]], check=True, capture_output=True
    )
    table = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = {**table["config"], **config}
    server, client = (
        load_object(table["components"][name], folder) for name in ("serverapp", "clientapp")
    )
    nodes = [
        {"dataset-path": str(Path.cwd() / "datasets" / f"{app.node_data}{i + 1}")}
        for i in range(app.users)
    ]
    server(InProcessGrid(client, app.users, config, nodes), server_context(config))


def one(app: App, folder: Path) -> dict[str, Any]:
    """Run an app in this process; what became of it."""
    import multiprocess

    from fedmf import load_model
    from fedmf.errors import ConfigError

    runs = Path.home() / ".fedmf" / "runs"
    hub = os.environ["HF_HOME"]
    config = {
        key: str(value).replace("{hub}", hub) if isinstance(value, str) else value
        for key, value in app.config.items()
    }
    multiprocess.set_start_method(
        "forkserver"
    )  # what is forked while JAX has threads may wait for ever
    multiprocess.set_forkserver_preload(["datasets"])
    try:
        if "tiny-bert" in app.loads:
            tiny_bert(Path(hub) / "tiny-bert")
        execute(app, folder, config)
    except ImportError as error:
        return {"outcome": f"left out: {error}", "good": True}
    except ConfigError as error:
        if "No module named" in str(error) or "cannot import name" in str(error):
            return {"outcome": f"left out: {error}", "good": True}
        good = (
            app.refused
            and app.refused in str(error)
            and "\n" not in str(error)
            and not runs.exists()
        )
        return {"outcome": f"refused: {error}", "good": bool(good)}
    (run,) = runs.iterdir()
    arrays = load_model(run)
    sys.path.insert(0, str(folder))
    given = {
        "np": np,
        "arrays": arrays,
        "ndarrays": [np.asarray(value) for value in arrays.values()],
    }
    exec(app.loads, given | {"hub": hub})
    failures = (run / "failures.jsonl").read_text() if (run / "failures.jsonl").exists() else ""
    outcome = f"private, the model loads{failures and ': a client failed: ' + failures[:200]}"
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
            key: os.environ[key]
            for key in ("PATH", "LANG", "TMPDIR", "PYTHONPATH")
            if key in os.environ
        }
        environment = passed | {
            "HOME": str(place / "home"),
            "HF_HOME": str(place / "hub"),
            "HF_HUB_OFFLINE": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PANDAS_FUTURE_INFER_STRING": "0",  # fl-tabular looks for columns of objects
        }
        command = [sys.executable, __file__, str(folder), "--one", str(number)]
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=300
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
        begun = time.monotonic()
        row = {"app": app.name, "strategy": app.instead or "its own", **run(number, given.checkout)}
        row["seconds"] = round(time.monotonic() - begun, 1)
        good = good and row["good"]
        text = f"{app.name}, {row['strategy']}, {row['seconds']} s: {row['outcome']}"
        print(
            json.dumps(row) if given.json else f"{'ok  ' if row['good'] else 'FAIL'} {text}",
            flush=True,
        )
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
