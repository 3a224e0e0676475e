"""pfl's CIFAR-10 benchmark: the same rounds by fedmf and by pfl, in turns on one machine.

    python simulations/benchmarks/pfl_protocol.py [--pfl PYTHON] [--threads 1 2] [--turns 2]
        [--rounds 10] [--networks dropout plain] [--device cpu] [--json]

1,000 users have 50 images of 32 × 32 pixels each. A round trains 50 of them for an epoch in batches
of 10 at learning rate 0.1 and adds the mean of their updates, which are clipped to norm 0.4; after
every tenth round the model is evaluated on 10,000 images (benchmarks/image_classification of
apple/pfl-research: configs/baseline.yaml, and the network of benchmarks/model/pytorch/cnn.py). Here
the pixels are made up, there is no noise, and images have their channels first. The network is that
of the benchmark, with dropout, or the same without it ("plain").

Each library runs as it stands: fedmf in a process with as many workers as threads, pfl in a process
with as many threads of torch and, on several processor cores, in as many processes of one thread
under torchrun as well. Turns take ``--rounds`` rounds, one evaluation among ten; a first round, in
which code is loaded, is left out. Minutes of 1,500 rounds are an extrapolation from the median
turn. Before that, both must make the same update of 8 users, without dropout. PYTHON is an
interpreter that has pfl and torch; without it fedmf runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

USERS: Final = 1_000
EXAMPLES: Final = 50
TESTS: Final = 10_000
CLASSES: Final = 10
COHORT: Final = 50
BATCH: Final = 10
LOCAL_RATE: Final = 0.1
CLIP_NORM: Final = 0.4
ROUNDS: Final = 1_500
EVALUATE_EVERY: Final = 10
#: Examples of a forward pass of an evaluation; the benchmark has 10,000, which takes 6 GB.
EVALUATED_TOGETHER: Final = 1_000
#: Users whose update is compared, and the largest distance as a share of its norm: rounding puts
#: some numbers on ReLU's other side.
COMPARED: Final = 8
TOLERANCE: Final = 1e-2
#: Whether this is the only process of its library, or the first one under torchrun.
FIRST: Final = os.environ.get("RANK", "0") == "0"


def network(dropout: bool) -> nn.Sequential:
    """Two convolutions of 3 × 3 and two dense layers: 1,626,442 parameters."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, CLASSES),
    ]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    if not dropout:
        layers = [layer for layer in layers if not isinstance(layer, nn.Dropout)]
    return nn.Sequential(*layers)


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Made-up images, each a weak image of its class in noise, and their classes."""
    classes = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    return images.add_(classes[labels], alpha=0.1), labels


class Turns:
    """Rounds in turns: each line of standard input asks for so many rounds.

    Of several processes under torchrun the first one reads and answers.
    """

    def __init__(self) -> None:
        self._left = 0
        self._start = 0.0
        self._processor_start = 0.0

    def wait(self) -> bool:
        """Wait until a turn begins; False where there is no further one."""
        self._left = int(sys.stdin.readline() or 0) if FIRST else 0
        if torch.distributed.is_initialized():
            left = torch.tensor(self._left)
            torch.distributed.broadcast(left, 0)
            self._left = int(left)
        self._start = time.perf_counter()
        self._processor_start = time.process_time()
        return self._left > 0

    def after_round(self, accuracy: float | None) -> bool:
        """Count a round, and answer if it is the turn's last; returns whether the run ends."""
        self._left -= 1
        if self._left:
            return False
        processor = torch.tensor(time.process_time() - self._processor_start)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(processor)
        answer = {
            "seconds": time.perf_counter() - self._start,
            "processor": float(processor),
            "accuracy": accuracy,
        }
        if FIRST:
            print(json.dumps(answer), flush=True)
        return not self.wait()


def serve_fedmf(dropout: bool, device: str, update: Path) -> None:
    """Write the update of some users, then run rounds as standard input asks."""
    import fedmf
    from fedmf.clipping.clipped_sum import ClippedSum
    from fedmf.data import InMemoryDataset
    from fedmf.optim import Sgd
    from fedmf.runs.loop import RoundRecord
    from fedmf.training import LocalTrainer, classification
    from fedmf.training.batches import user_orders

    images, labels = examples(USERS * EXAMPLES, 1)
    owned = np.arange(USERS * EXAMPLES).reshape(USERS, EXAMPLES)
    names = [f"u{user}" for user in range(USERS)]
    tests = examples(TESTS, 2)
    dataset = InMemoryDataset(images, labels, list(owned), names, *tests, CLASSES)
    local = fedmf.LocalSGD(batch_size=BATCH, learning_rate=LOCAL_RATE)

    # pfl takes a user's examples in their order: here they are moved such that the shuffle of
    # round 0 restores it.
    moved = owned[:COMPARED].copy()
    for user in range(COMPARED):
        order = user_orders(0, 0, names[user], EXAMPLES, epochs=1)[0]
        moved[user, order] = owned[user]
    compared = replace(dataset, owned=[*moved, *owned[COMPARED:]])
    task = classification(compared, network(dropout=False)).to(device)
    origin = task.model.initial().to(device)
    total = ClippedSum(origin.numel(), CLIP_NORM, device)
    LocalTrainer(task, local).add_updates(origin, names[:COMPARED], 0, total)
    np.save(update, (total.total() / COMPARED).cpu().numpy())

    run = fedmf.Run(
        task=classification(dataset, network(dropout)),
        cohorts=fedmf.CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        privacy=fedmf.NoPrivacy(clip_norm=CLIP_NORM),
        mechanism="independent",
        server=Sgd(learning_rate=1.0),
        client=local,
        execution=fedmf.Execution(evaluate_every=EVALUATE_EVERY),
    )
    turns = Turns()
    accuracy: list[float] = []

    def on_round(record: RoundRecord) -> bool:
        if "accuracy" in record.metrics:
            accuracy.append(record.metrics["accuracy"])
        return turns.after_round(accuracy[-1] if accuracy else None)

    if turns.wait():
        with tempfile.TemporaryDirectory() as folder:
            fedmf.simulate(run, Path(folder) / "run", device, on_round, progress=False)


def serve_pfl(dropout: bool, device: str, update: Path) -> None:
    """Write the update of some users, then run rounds as standard input asks."""
    os.environ["PFL_PYTORCH_DEVICE"] = device
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import StringMetricName, Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism
    from pfl.privacy.privacy_mechanism import NormClippingOnly

    class Learner(nn.Module):
        """A network with the loss and the metrics that pfl asks for."""

        def __init__(self, layers: nn.Sequential) -> None:
            super().__init__()
            self.layers = layers

        def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
            self.train(not eval)
            return nn.functional.cross_entropy(self.layers(images), labels)

        @torch.no_grad()
        def metrics(self, images: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Weighted]:
            self.train(not eval)
            outputs = self.layers(images)
            correct = (outputs.argmax(dim=1) == labels).sum().item()
            loss = nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            return {"loss": Weighted(loss, len(labels)), "accuracy": Weighted(correct, len(labels))}

    def on_device(values: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [part.to(device) for part in values]

    images, labels = on_device(examples(USERS * EXAMPLES, 1))
    users = [
        (images[first : first + EXAMPLES], labels[first : first + EXAMPLES])
        for first in range(0, len(labels), EXAMPLES)
    ]
    training = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=LOCAL_RATE, local_batch_size=BATCH
    )
    evaluation = NNEvalHyperParams(local_batch_size=EVALUATED_TOGETHER)

    def run(
        learner: Learner, chosen: list[int], params: NNAlgorithmParams, callbacks: list[Any]
    ) -> None:
        parameters = learner.parameters()
        model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(parameters, lr=1.0))
        data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", chosen))
        clipping = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, CLIP_NORM))
        backend = SimulatedBackend(data, data, postprocessors=[WeightByUser(), clipping])
        FederatedAveraging().run(
            params, backend, model, training, evaluation, callbacks, send_metrics_to_platform=False
        )

    def flat(learner: Learner) -> Tensor:
        parts = [parameter.detach().flatten() for parameter in learner.parameters()]
        return torch.cat(parts).double()

    compared = Learner(network(dropout=False)).to(device)
    before = flat(compared)
    run(compared, list(range(COMPARED)), NNAlgorithmParams(1, ROUNDS, COMPARED, 0), [])
    if FIRST:
        np.save(update, (flat(compared) - before).cpu().numpy())

    turns = Turns()

    class AfterRound(TrainingProcessCallback):
        """Counts the rounds of turns, with the last accuracy on the test part."""

        accuracy: float | None = None

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            del model, central_iteration
            name = StringMetricName("Central val | accuracy")
            if name in aggregate_metrics:
                self.accuracy = aggregate_metrics[name].overall_value
            return turns.after_round(self.accuracy), type(aggregate_metrics)()

    central = Dataset(on_device(examples(TESTS, 2)), eval_kwargs={"eval": True})
    callbacks = [CentralEvaluationCallback(central, evaluation, EVALUATE_EVERY), AfterRound()]
    learner = Learner(network(dropout)).to(device)
    if turns.wait():
        params = NNAlgorithmParams(ROUNDS, EVALUATE_EVERY, COHORT, 0)
        run(learner, list(range(USERS)), params, callbacks)


@dataclass(frozen=True)
class Setting:
    """A way to run both libraries.

    Args:
        dropout: whether the network has it.
        threads: of torch in each process.
        device: "cpu" or "cuda".
    """

    dropout: bool
    threads: int
    device: str


class Library:
    """Rounds by one library in processes of its own.

    Args:
        name: "fedmf", "pfl" or "pfl, processes".
        python: the interpreter that has it.
        setting: how it runs.
        update: where it writes the update that is compared.
    """

    def __init__(self, name: str, python: str, setting: Setting, update: Path) -> None:
        command = [python]
        threads = setting.threads
        if name == "pfl, processes":
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(threads)]
            threads = 1
        command += [__file__, "--serve", name.split(",")[0], "--update", str(update)]
        command += ["--device", setting.device, "--threads", str(threads)]
        command += ["--networks", "dropout" if setting.dropout else "plain"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=environment, **pipes)

    def turn(self, rounds: int) -> dict[str, Any]:
        """Run some rounds: wall and processor seconds, and the last accuracy."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the run."""
        self._process.communicate()


def distances_of_updates(files: dict[str, Path]) -> dict[str, float]:
    """How far each library's update is from that of fedmf, as a share of its norm.

    Raises:
        SystemExit: one is too far away.
    """
    expected = np.load(files["fedmf"])
    distances: dict[str, float] = {}
    for name, file in files.items():
        distances[name] = float(np.linalg.norm(np.load(file) - expected))
        distances[name] /= float(np.linalg.norm(expected))
        if distances[name] > TOLERANCE:
            raise SystemExit(f"the update of {name} is {distances[name]:.2g} of fedmf's norm away")
    return distances


def measure(setting: Setting, pythons: dict[str, str], rounds: int, turns: int) -> dict[str, Any]:
    """Rows by library: seconds of a round, users a second, minutes of the whole protocol."""
    if "pfl" in pythons and setting.device == "cpu" and setting.threads > 1:
        pythons = {**pythons, "pfl, processes": pythons["pfl"]}
    with tempfile.TemporaryDirectory() as folder:
        updates = {name: Path(folder) / f"{name}.npy" for name in pythons}
        made: dict[str, Library] = {}
        for name, python in pythons.items():
            made[name] = Library(name, python, setting, updates[name])
            made[name].turn(1)
        spent: dict[str, list[dict[str, Any]]] = {name: [] for name in made}
        for _ in range(turns):
            for name, library in made.items():
                spent[name].append(library.turn(rounds))
        for library in made.values():
            library.close()
        distances = distances_of_updates(updates)
    found: dict[str, Any] = {}
    for name, answers in spent.items():
        seconds = statistics.median(answer["seconds"] for answer in answers) / rounds
        found[name] = {
            "seconds a round": seconds,
            "processor seconds a round": statistics.median(a["processor"] for a in answers)
            / rounds,
            "users a second": COHORT / seconds,
            "minutes of 1,500 rounds": ROUNDS * seconds / 60,
            "accuracy": answers[-1]["accuracy"],
            "rounds": rounds * turns,
            "distance of updates": distances[name],
        }
    return found


def main() -> None:
    """Print a line for each setting and library."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pfl", metavar="PYTHON", help="an interpreter that has pfl")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--networks", nargs="+", choices=("dropout", "plain"), default=["dropout"])
    parser.add_argument("--rounds", type=int, default=10, help="of a turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", choices=("fedmf", "pfl"), help=argparse.SUPPRESS)
    parser.add_argument("--update", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(options.threads[0])
        serve = {"fedmf": serve_fedmf, "pfl": serve_pfl}[options.serve]
        serve(options.networks == ["dropout"], options.device, options.update)
        return
    pythons = {"fedmf": sys.executable}
    if options.pfl:
        pythons["pfl"] = options.pfl
    for kind in options.networks:
        for threads in options.threads:
            setting = Setting(kind == "dropout", threads, options.device)
            found = measure(setting, pythons, options.rounds, options.turns)
            for name, row in found.items():
                whole = {"network": kind, "threads": threads, "device": options.device}
                whole |= {"library": name, **row}
                if options.json:
                    print(json.dumps(whole), flush=True)
                    continue
                known = {label: value for label, value in row.items() if value is not None}
                figures = ", ".join(f"{value:.4g} {label}" for label, value in known.items())
                print(f"{kind}, {threads} threads, {name}: {figures}", flush=True)


if __name__ == "__main__":
    main()
