"""Make Flower's example apps private by a few lines on their server, and run them.

    git clone --filter=blob:none https://github.com/adap/flower
    python simulations/flower_apps.py flower [APP ...] [--ray] [--json]

The lines put `CorrelatedNoise` around the app's strategy, and `user_id_mod` into its client app;
training and models stay as they are. Data are made up in the shape of the app's own, in the cache
of the library `datasets`. Each app runs four rounds of two users on an `InProcessGrid`, or with
Ray: unwrapped; privately; and privately until its process ends within round 3, while another
process continues the run. The continued run must release the same model, and the app's own code
loads it; ε is 1000, since noise for so few users makes some models overflow. A row has the median
seconds from the start of a round to that of the next, of both apps: clients of the unwrapped app
may also evaluate. Strategies that cannot be private in this way must be refused in one line before
anything is spent. An app is left out where something that it imports is not there: a package, or a
name that Flower does not have any more. Exit code 1 if an app did not do what it should.
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
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

ROOT: Final = Path(__file__).resolve().parents[1]
#: The commit whose apps these are.
COMMIT: Final = "fdef7afb1dca3030553be302366cfd285ed6632c"
ROUNDS: Final = 4
FEDAVG: Final = "from flwr.serverapp.strategy import FedAvg"
START: Final = "    result = strategy.start("
CLIENT: Final = "app = ClientApp()"
#: The environment variable with the run directory of the private app; the unwrapped one has none.
RUN_DIR: Final = "FLOWER_APPS_RUN_DIR"
#: The processes of an app: a continued run must release the model of the private one.
STAGES: Final = ("unwrapped", "private", "interrupted", "resumed")

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

    def make_private(self, folder: Path) -> None:
        """Write the lines that make the app private into its server and its client app."""
        wrapper = (
            "    import os\n    from fedmf import CyclicCohorts, UserLevel, flower\n"
            f"    if {RUN_DIR!r} in os.environ:\n"
            "        strategy = flower.CorrelatedNoise(strategy,\n"
            "            UserLevel(epsilon=1000.0, delta=1e-5, clip_norm=1.0, noise_seed=1),\n"
            f"            CyclicCohorts(rounds={ROUNDS}, users_per_round={self.asked}),\n"
            f"            users=flower.ClientReportedIdentity(map(str, range({self.users}))),\n"
            f"            run_dir=os.environ[{RUN_DIR!r}])\n"
        )
        edits = [(START, wrapper + START)]
        if self.instead:
            edits.append((FEDAVG, "from flwr.serverapp.strategy import *"))
            edits.append(("    strategy = FedAvg(", f"    strategy = {self.instead}\n    FedAvg("))
        server = folder / self.server
        replace_lines(server, edits)
        if not self.refused:
            mod = "from fedmf.flower import user_id_mod\napp = ClientApp(mods=[user_id_mod()])"
            replace_lines(server.with_name("client_app.py"), [(CLIENT, mod)])


def replace_lines(file: Path, edits: list[tuple[str, str]]) -> None:
    """Replace beginnings of lines, each of which the file must have once."""
    text = file.read_text()
    for old, new in edits:
        if text.count("\n" + old) != 1:
            raise ValueError(f"{file.name} must have one line that begins with {old!r}.")
        text = text.replace("\n" + old, "\n" + new)
    file.write_text(text)


def net(module: str, name: str = "Net") -> str:
    """Code that gives the released model to a module of PyTorch."""
    return f"from {module}.task import {name}\n{name}().load_state_dict(arrays, strict=True)"


_SILENT: Final = {"num-server-rounds": ROUNDS, "fraction-evaluate": 0.0}
_ROUNDS: Final = {"num-server-rounds": ROUNDS}
_PYTORCH: Final = "pytorchexample/server_app.py"
_CIFAR: Final = "uoft-cs/cifar10"
_NO_MEAN: Final = "aggregates by something other than a mean"

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
    App(
        "advanced-pytorch",
        "pytorch_example/server_app.py",
        net("pytorch_example"),
        data="zalando-datasets/fashion_mnist",
        config=_SILENT,
    ),
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
        refused="statistics of a normalization layer",
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
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertTokenizerFast,  # type: ignore[attr-defined]
    )

    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    size: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **size)).save_pretrained(folder)


class Node(ClientApp):
    """The client app of a folder, whose draws depend on the round and the node alone.

    Args:
        folder: the app's folder.
        component: where the app is, as in its ``pyproject.toml``.
        config: the run config.
        node_data: the name of a node's data before its number, from 1 on; none if empty.
    """

    def __init__(
        self, folder: Path, component: str, config: dict[str, Any], node_data: str
    ) -> None:
        super().__init__()
        self.folder = folder
        self.component = component
        self.config = config
        self.node_data = node_data

    def __call__(self, message: Message, context: Context) -> Message:
        from fedmf.flower.compat import load_object
        from fedmf.flower.handshake import is_question

        fork_safely()
        partition = int(context.node_config["partition-id"])
        given = replace(context, run_config=self.config, node_config={**context.node_config})
        if self.node_data:
            data = Path.cwd() / "datasets" / f"{self.node_data}{partition + 1}"
            given.node_config["dataset-path"] = str(data)
        if not is_question(message):
            asked: Any = message.content.config_records["config"]["server-round"]
            seed([asked, partition])
        return load_object(self.component, self.folder)(message, given)


def fork_safely() -> None:
    """Let `datasets` start processes while JAX has threads: a fork may wait for ever."""
    import multiprocess

    context: Any = multiprocess
    context.set_start_method("forkserver", force=True)
    context.set_forkserver_preload(["datasets"])


def seed(values: list[int]) -> None:
    """Seed the global generators: also TensorFlow's, which no other app has."""
    from fedmf.flower.local_app import seeded_generators

    seeded_generators(values)
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(int(np.random.SeedSequence(values).generate_state(1)[0]))


def execute(app: App, folder: Path, config: dict[str, Any], ray: bool, last: int) -> float:
    """Run an app in this process, which ends when clients are asked for a round after the last.

    Returns:
        The median seconds of a round.
    """
    from fedmf.flower import InProcessGrid
    from fedmf.flower.compat import flat_config, load_object, server_context

    table = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = {**flat_config(table["config"]), **config}
    seed([0])
    server = load_object(table["components"]["serverapp"], folder)
    node = Node(folder, table["components"]["clientapp"], config, app.node_data)
    begun = dict[int, float]()
    errors = list[Exception]()

    def main(grid: Any, context: Context) -> None:
        push = grid.push_messages

        def timed(messages: Iterable[Message]) -> Iterable[str]:
            asked = list(messages)
            for message in asked:
                if message.metadata.message_type.startswith("train"):
                    configured: Any = message.content.config_records.get("config", {})
                    number = configured.get("server-round", 0)
                    if number > last:
                        os._exit(0)
                    begun.setdefault(number, time.monotonic())
            return push(asked)

        grid.push_messages = timed
        try:
            server(grid, replace(context, run_config=config))
        except Exception as error:
            errors.append(error)

    if ray:
        from flwr.simulation import run_simulation

        server_app = ServerApp()
        server_app.main()(main)
        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server_app, node, app.users, backend_config=resources)  # type: ignore
    else:
        main(InProcessGrid(node, app.users, config), server_context(config))
    if errors:
        raise errors[0]
    return float(np.median(np.diff([begun[number] for number in sorted(begun) if number])))


def started(
    app: App, folder: Path, config: dict[str, Any], stage: str, ray: bool
) -> dict[str, Any]:
    """Run the app once; its seconds a round, or why there are none."""
    from fedmf.errors import ConfigError

    last = ROUNDS // 2 if stage == "interrupted" else ROUNDS
    try:
        seconds = round(execute(app, folder, config, ray, last), 3)
    except (ImportError, ConfigError) as error:
        if "No module named" in str(error) or "cannot import name" in str(error):
            return {"outcome": f"left out: {error}", "good": True}
        if isinstance(error, ImportError):
            raise
        is_right = app.refused and app.refused in str(error) and "\n" not in str(error)
        has_begun = Path(os.environ[RUN_DIR]).exists()
        return {"outcome": f"refused: {error}", "good": bool(is_right) and not has_begun}
    if stage == "resumed":
        return compared(app)
    key = "seconds_a_round_private" if stage == "private" else "seconds_a_round"
    return {key: seconds}


def compared(app: App) -> dict[str, Any]:
    """Whether the continued run's model is that of the other run, and loads."""
    from fedmf import load_model

    run = Path(os.environ[RUN_DIR])
    whole = load_model(Path.home() / "private")
    arrays = load_model(run)
    is_same = all(np.array_equal(whole[name], arrays[name]) for name in whole)
    given = {
        "np": np,
        "arrays": arrays,
        "ndarrays": [np.asarray(value) for value in arrays.values()],
        "hub": os.environ["HF_HOME"],
    }
    exec(app.loads, given)
    failures = (run / "failures.jsonl").read_text() if (run / "failures.jsonl").exists() else ""
    outcome = f"private, the model loads{failures and ': a client failed: ' + failures[:200]}"
    return {"outcome": outcome, "resumed_is_same": is_same, "good": is_same and not failures}


def one(app: App, folder: Path, stage: str, ray: bool) -> None:
    """Run an app once in this process, and write what became of it as a line of JSON."""
    fork_safely()
    hub = os.environ["HF_HOME"]
    config = {
        key: str(value).replace("{hub}", hub) if isinstance(value, str) else value
        for key, value in app.config.items()
    }
    if "tiny-bert" in app.loads and not (Path(hub) / "tiny-bert").exists():
        tiny_bert(Path(hub) / "tiny-bert")
    if app.prepare and not Path("datasets").exists():
        script = [sys.executable, folder / app.prepare[0], *app.prepare[1:]]
        subprocess.run(script, check=True, capture_output=True)
    if stage != "unwrapped":
        name = "private" if stage == "private" else "interrupted"
        os.environ[RUN_DIR] = str(Path.home() / name)
    print("row:" + json.dumps(started(app, folder, config, stage, ray)), flush=True)


def run(number: int, checkout: Path, ray: bool) -> dict[str, Any]:
    """Run an app in processes of its own, one for each stage."""
    app = APPS[number]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "home").mkdir()
        folder = place / app.name
        shutil.copytree(checkout / "examples" / app.name, folder)
        app.make_private(folder)
        if app.data:
            make_up(app.data, place / "hub" / "datasets")
        passed = {
            key: os.environ[key]
            for key in ("PATH", "LANG", "TMPDIR", "PYTHONPATH", "RAY_worker_niceness")
            if key in os.environ
        }
        environment = passed | {
            "HOME": str(place / "home"),
            "HF_HOME": str(place / "hub"),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PANDAS_FUTURE_INFER_STRING": "0",  # fl-tabular looks for columns of objects
        }
        command = [sys.executable, __file__, str(folder), "--one", str(number)]
        if ray:
            command.append("--ray")
        row: dict[str, Any] = {}
        for stage in ("private",) if app.refused else STAGES:
            try:
                done = subprocess.run(
                    [*command, "--stage", stage],
                    cwd=place,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=600,
                )
            except subprocess.TimeoutExpired:
                return row | {"outcome": f"{stage}: no end within 600 s", "good": False}
            if done.returncode:
                return row | {"outcome": done.stderr.strip().splitlines()[-1], "good": False}
            lines = [line for line in done.stdout.splitlines() if line.startswith("row:")]
            if stage != "interrupted":
                row |= json.loads(lines[-1].removeprefix("row:"))
            if "outcome" in row:
                return row
        return row


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help=f"of Flower's repository, at {COMMIT[:10]}")
    parser.add_argument("apps", nargs="*", help="names; all by default")
    parser.add_argument("--json", action="store_true", help="one JSON object per app")
    parser.add_argument("--ray", action="store_true", help="Flower's simulation engine")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        one(APPS[given.one], given.checkout, given.stage, given.ray)
        return 0
    good = True
    for number, app in enumerate(APPS):
        if given.apps and app.name not in given.apps:
            continue
        if given.ray and app.refused:
            continue
        begun = time.monotonic()
        row = {
            "app": app.name,
            "strategy": app.instead or "its own",
            **run(number, given.checkout, given.ray),
        }
        row["seconds"] = round(time.monotonic() - begun, 1)
        good = good and row["good"]
        text = f"{app.name}, {row['strategy']}, {row['seconds']} s: {row['outcome']}"
        for key in ("resumed_is_same", "seconds_a_round", "seconds_a_round_private"):
            if key in row:
                text += f", {key} {row[key]}"
        print(
            json.dumps(row) if given.json else f"{'ok  ' if row['good'] else 'FAIL'} {text}",
            flush=True,
        )
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
