"""The apps of the gallery as data: where they are, what is changed, how they run, what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from edits import Edit

#: The commit of https://github.com/adap/flower whose apps these are.
COMMIT: Final = "fdef7afb1dca3030553be302366cfd285ed6632c"
ROUNDS: Final = 3

Way = Literal["run_app", "flwr run", "supernodes"]
_LOCAL: Final[tuple[Way, ...]] = ("run_app", "flwr run")
_OFFLINE_NODES: Final = "data are read from where each node's config says; virtual nodes have no such config"


@dataclass(frozen=True)
class App:
    """An app that becomes private.

    Args:
        name: its folder below ``examples/``.
        kind: what it is an example of.
        server: the file that is changed.
        edits: what is changed.
        loads: code of the app that takes the released model, ``arrays`` by name or ``ndarrays`` in order.
        data: tables that are made up, and a model.
        environment: apps of one name share an environment.
        nodes: N.
        config: values of the run config that are replaced, to be small.
        ways: in which it runs.
        why_not: of the ways in which it does not.
        workers: of `run_app`; None is its default.
        prepare: a script of the app with its words, run beforehand in an empty folder.
        node_config: more of each SuperNode's config.
        authenticated: SuperNodes have keys that the SuperLink knows, and connections are encrypted.
    """

    name: str
    kind: str
    server: str
    edits: tuple[Edit, ...]
    loads: str
    data: tuple[str, ...] = ()
    environment: str = "torch"
    nodes: int = 8
    config: Mapping[str, str | int | float] = field(default_factory=dict)
    ways: tuple[Way, ...] = _LOCAL
    why_not: Mapping[Way, str] = field(default_factory=dict)
    workers: int | None = None
    prepare: tuple[str, ...] = ()
    node_config: str = ""
    authenticated: bool = False


@dataclass(frozen=True)
class Refused:
    """An app that must be refused before anything is spent.

    Args:
        name: its folder below ``examples/``.
        kind: why it cannot be private in this way.
        server: the file that is changed.
        edits: what somebody would try.
        says: words of the line that refuses it.
        data: see `App`.
        environment: see `App`.
        config: see `App`.
    """

    name: str
    kind: str
    server: str
    edits: tuple[Edit, ...]
    says: str
    data: tuple[str, ...] = ()
    environment: str = "torch"
    config: Mapping[str, str | int | float] = field(default_factory=dict)


#: What an environment needs beside what apps ask for: fl-tabular's scikit-learn knows no text of pandas 3.
ALSO: Final[Mapping[str, tuple[str, ...]]] = {"torch": ("pandas<3",)}

FEDAVG: Final = "from flwr.serverapp.strategy import FedAvg"
START: Final = "    result = strategy.start("


def around(asked: int, users: int = 8, after: str = FEDAVG, before: str = START) -> tuple[Edit, ...]:
    """The three lines: an import, and the wrapper around the strategy that the app has made.

    Args:
        asked: users a round, as many as the plain app asks.
        users: N.
        after: the line after which the import stands.
        before: the line before which the strategy is wrapped.
    """
    return (
        Edit(after, f"{after}\nfrom fedmf.flower import CorrelatedNoise"),
        Edit(
            before,
            "    strategy = CorrelatedNoise(strategy, epsilon=8.0, delta=1e-5, clipping_norm=1.0,\n"
            f"{' ' * 31}num_users={users}, users_per_round={asked}, num_rounds={ROUNDS})\n{before}",
        ),
    )


def net(module: str, name: str = "Net") -> str:
    """Code that gives the released model to a module of PyTorch."""
    return f"from {module}.task import {name}\n{name}().load_state_dict(arrays, strict=True)"


#: Evaluation on clients, which the private app does not do, is left out of the plain one where it can be.
_SILENT: Final = {"num-server-rounds": ROUNDS, "fraction-evaluate": 0.0}
_ROUNDS: Final = {"num-server-rounds": ROUNDS}

APPS: Final = (
    App(
        name="quickstart-pytorch",
        kind="PyTorch",
        server="pytorchexample/server_app.py",
        edits=around(4, users=4),
        loads=net("pytorchexample"),
        data=("uoft-cs/cifar10",),
        nodes=4,
        config=_SILENT,
        ways=(*_LOCAL, "supernodes"),
    ),
    App(
        name="advanced-pytorch",
        kind="PyTorch: own strategy, state on clients",
        server="pytorch_example/server_app.py",
        edits=around(2, after="from pytorch_example.strategy import CustomFedAvg"),
        loads=net("pytorch_example"),
        data=("zalando-datasets/fashion_mnist",),
        config={**_SILENT, "fraction-train": 0.25},
    ),
    App(
        name="quickstart-sklearn",
        kind="scikit-learn",
        server="sklearnexample/server_app.py",
        edits=around(4, users=4),
        loads="from sklearnexample.task import *\n"
        "model = create_log_reg_and_instantiate_parameters('l2')\n"
        "set_model_params(model, ndarrays).predict(np.zeros((1, 4)))",
        data=("hitorilabs/iris",),
        environment="jax",
        nodes=4,
        config=_ROUNDS,
        ways=(*_LOCAL, "supernodes"),
    ),
    App(
        name="quickstart-numpy",
        kind="NumPy",
        server="quickstart_numpy/server_app.py",
        edits=around(8),
        loads="from quickstart_numpy.task import get_dummy_model\n"
        "assert [a.shape for a in ndarrays] == [a.shape for a in get_dummy_model()]",
        environment="jax",
        config=_ROUNDS,
    ),
    App(
        name="quickstart-jax",
        kind="JAX, Flax",
        server="jaxexample/server_app.py",
        edits=around(2),
        loads="from jaxexample.task import create_train_state, set_params\n"
        "set_params(create_train_state(0.1), ndarrays)",
        data=("ylecun/mnist",),
        environment="jax",
        config={**_SILENT, "batch-size": 8},
    ),
    App(
        name="quickstart-tensorflow",
        kind="TensorFlow, Keras",
        server="tfexample/server_app.py",
        edits=around(4),
        loads="from tfexample.task import load_model\nload_model().set_weights(ndarrays)",
        data=("uoft-cs/cifar10",),
        environment="tensorflow",
        config={**_ROUNDS, "fraction-train": 0.5},
    ),
    App(
        name="quickstart-huggingface",
        kind="Hugging Face",
        server="huggingface_example/server_app.py",
        edits=around(4),
        loads="from huggingface_example.task import get_model\n"
        "get_model(f'{hub}/tiny-bert').load_state_dict(arrays, strict=True)",
        data=("stanfordnlp/imdb", "tiny-bert"),
        config={**_SILENT, "fraction-train": 0.5, "model-name": "{hub}/tiny-bert"},
    ),
    App(
        name="quickstart-pytorch-lightning",
        kind="PyTorch Lightning",
        server="pytorchlightning_example/server_app.py",
        edits=around(4),
        loads=net("pytorchlightning_example", "LitAutoEncoder"),
        data=("ylecun/mnist",),
        config=_ROUNDS,
    ),
    App(
        name="fl-tabular",
        kind="a table, PyTorch",
        server="fltabular/server_app.py",
        edits=around(8),
        loads=net("fltabular", "IncomeClassifier"),
        data=("scikit-learn/adult-census-income",),
        config=_ROUNDS,
    ),
    App(
        name="federated-vae",
        kind="variational autoencoder",
        server="fedvaeexample/server_app.py",
        edits=around(8),
        loads=net("fedvaeexample"),
        data=("uoft-cs/cifar10",),
        config=_ROUNDS,
    ),
    App(
        name="opacus",
        kind="clients with noise on examples (Opacus)",
        server="opacus_fl/server_app.py",
        edits=around(8),
        loads=net("opacus_fl"),
        data=("uoft-cs/cifar10",),
        config=_ROUNDS,
    ),
    App(
        name="quickstart-pennylane",
        kind="quantum circuit (PennyLane)",
        server="quickstart_pennylane/server_app.py",
        edits=around(8),
        loads="from quickstart_pennylane.task import QuantumNet\nQuantumNet().load_state_dict(arrays)",
        data=("uoft-cs/cifar10",),
        config={**_SILENT, "local-epochs": 1},
    ),
    App(
        name="supernode-authentication",
        kind="PyTorch: nodes with keys, encrypted",
        server="authexample/server_app.py",
        edits=around(3, users=3),
        loads=net("authexample"),
        data=("uoft-cs/cifar10",),
        nodes=3,
        config=_SILENT,
        ways=("supernodes",),
        why_not={"run_app": _OFFLINE_NODES, "flwr run": _OFFLINE_NODES},
        prepare=("prepare_dataset.py", "{nodes}"),
        node_config="dataset-path='{place}/datasets/cifar10_part_{number}'",
        authenticated=True,
    ),
    App(
        name="embedded-devices",
        kind="PyTorch: data on each device",
        server="embeddedexample/server_app.py",
        edits=around(3, users=3),
        loads=net("embeddedexample"),
        data=("zalando-datasets/fashion_mnist",),
        nodes=3,
        config=_SILENT,
        ways=("supernodes",),
        why_not={"run_app": _OFFLINE_NODES, "flwr run": _OFFLINE_NODES},
        prepare=("generate_dataset.py", "--num-supernodes", "{nodes}"),
        node_config="dataset-path='{place}/datasets/fashionmnist_part_{number}'",
    ),
)


def instead(strategy: str) -> tuple[Edit, ...]:
    """quickstart-pytorch with another strategy of Flower, and the wrapper around it."""
    made = "    strategy = FedAvg(fraction_evaluate=fraction_evaluate)"
    imported = strategy.partition("(")[0]
    first, second = around(8)
    return (
        Edit(first.line, f"{first.becomes}\nfrom flwr.serverapp.strategy import {imported}"),
        Edit(made, f"    strategy = {strategy}"),
        second,
    )


_OLDER: Final = "    context = LegacyContext("

REFUSED: Final = (
    Refused(
        name="quickstart-xgboost",
        kind="trees",
        server="quickstart_xgboost/server_app.py",
        edits=around(8, after="from flwr.serverapp.strategy import FedXgbBagging"),
        says="aggregates by something else than a mean",
        environment="jax",
    ),
    Refused(
        name="xgboost-comprehensive",
        kind="trees, one client after another",
        server="xgboost_comprehensive/server_app.py",
        edits=around(8, after="from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic"),
        says="aggregates by something else than a mean",
        environment="jax",
        config={"train-method": "cyclic"},
    ),
    Refused(
        name="quickstart-pytorch",
        kind="robust aggregation: FedMedian in place of FedAvg",
        server="pytorchexample/server_app.py",
        edits=instead("FedMedian()"),
        says="aggregates by something else than a mean",
    ),
    Refused(
        name="quickstart-pytorch",
        kind="robust aggregation: Krum in place of FedAvg",
        server="pytorchexample/server_app.py",
        edits=instead("Krum(num_malicious_nodes=1)"),
        says="aggregates by something else than a mean",
    ),
    Refused(
        name="quickstart-pytorch",
        kind="already private: Flower's own wrapper around FedAvg",
        server="pytorchexample/server_app.py",
        edits=instead(
            "DifferentialPrivacyServerSideFixedClipping(FedAvg(), noise_multiplier=0.6, clipping_norm=1.0,"
            " num_sampled_clients=8)"
        ),
        says="must be one whose aggregation is a mean",
    ),
    Refused(
        name="fl-dp-sa",
        kind="already private, with secure aggregation; older interface",
        server="fl_dp_sa/server_app.py",
        edits=around(
            8,
            after="from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow",
            before="    # Construct the LegacyContext",
        ),
        says="older interface",
    ),
    Refused(
        name="flower-secure-aggregation",
        kind="secure aggregation; older interface",
        server="secaggexample/server_app.py",
        edits=around(
            8, after="from flwr.server.strategy import FedAvg", before="    # Construct the LegacyContext"
        ),
        says="older interface",
    ),
    Refused(
        name="flower-simulation-step-by-step-pytorch/my-awesome-app",
        kind="older interface: `server_fn`",
        server="my_awesome_app/server_app.py",
        edits=around(
            8,
            after="from my_awesome_app.my_strategy import CustomFedAvg",
            before="    config = ServerConfig(num_rounds=num_rounds)",
        ),
        data=("zalando-datasets/fashion_mnist",),
        says="older interface",
    ),
    Refused(
        name="quickstart-monai",
        kind="running statistics of BatchNorm",
        server="monaiexample/server_app.py",
        edits=around(4),
        says="statistics of a normalisation layer",
    ),
)

#: Apps without a strategy: there is nothing to put the wrapper around. The gallery looks whether it is so.
WITHOUT_STRATEGY: Final = {
    "vertical-fl": ("vertical_fl/server_app.py", "vertical: every client has columns of the same people"),
    "quickstart-catboost": ("quickstart_catboost/server_app.py", "trees"),
    "federated-analytics": ("federated_analytics/server_app.py", "histograms: one question, no model"),
    "federated-kaplan-meier-fitter": ("examplefkm/server_app.py", "clients send their rows"),
    "quickstart-pandas": ("pandas_example/server_app.py", "histograms: one question, no model"),
    "fedrag": ("fedrag/server_app.py", "retrieval: no training"),
}

#: Apps that were not tried.
NOT_TRIED: Final = {
    "flowertune-llm and its four variants": "models of billions of parameters, quantised on a GPU",
    "flowertune-vit": "starts from weights of ImageNet, 330 MB",
    "whisper-federated-finetuning": "starts from Whisper's weights",
    "quickstart-lerobot": "older interface (`server_fn`); a simulator for robots",
    "quickstart-mlx": "for Apple's processors",
    "custom-mods": "another version of wandb than advanced-pytorch asks for: an environment of its own",
    "quickstart-fastai": "SqueezeNet on pictures of 224 × 224",
    "android, android-kotlin, ios, quickstart-cpp": "clients are no Flower apps",
}
