"""A GPU's parts of a round, in turn with another version's and with plain torch.

    python simulations/benchmarks/gpu.py [--cases CASE ...] [--before TREE] [--device cuda]
    [--seconds 8]
        [--limit 20] [--json]

A case is ``train MODEL`` (of `engine.py`), ``clip D`` or ``release D MECHANISM``. Each version
has a process of its own, which makes a case and is then asked for one turn after another; seconds
lie between synchronisations, the first turn is left out, and ratios are medians over turns. A case
that fails, or a process that does not answer within the limit, is said, and the next case goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from engine import LOCAL, loop, task_of
from torch import Tensor

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.matrices.factorization import Factorization
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.blt_family import blt
from fedmf.mechanisms.closed_forms import bisr, identity
from fedmf.noise.key import Domain, NoiseKey
from fedmf.noise.noise_stream import NoiseStream
from fedmf.optim import RoundRelease, Sgd
from fedmf.participation import Participation
from fedmf.release.noisy_sum import NoisySum
from fedmf.training import LocalTrainer

HORIZON: Final = 256
#: Factorizations: none is kept by more than four vectors.
MECHANISMS: Final[dict[str, Callable[[], Factorization]]] = {
    "identity": lambda: identity(HORIZON),
    "bisr": lambda: bisr(4, HORIZON),
    "toeplitz": lambda: banded_toeplitz(4, Participation(HORIZON, 64, 4)),
    "blt": lambda: blt(4, Participation(HORIZON, 64, 4)),
}
MODELS: Final = "mlp", "cnn", "lstm", "lora", "transformer"
RELEASES: Final = [f"release {d} {name}" for d in (10**7, 10**8) for name in MECHANISMS]
CASES: Final = [*(f"train {m}" for m in MODELS), "clip 10000000", *RELEASES]
#: Users trained in a turn, fewer of models that are trained one by one; entries of rows that are
#: clipped.
USERS: Final = {"lstm": 64, "transformer": 256}
ENTRIES: Final = {"cuda": 10**9, "cpu": 10**7}


@dataclass(frozen=True)
class Case:
    """What is timed.

    Args:
        amount: what a turn does, in ``unit``.
        unit: see above.
        ways: to do it; the first is fedmf's.
        copies: of a vector of d numbers, which "copy" makes, that move as little as fedmf's way
            must.
        facts: what else is told.
    """

    amount: float
    unit: str
    ways: dict[str, Callable[[], object]]
    copies: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


def train(device: torch.device, model: str) -> Case:
    """Users' local training, clip and sum; how far four updates are from the processor's."""
    users = USERS.get(model, 512)
    there = task_of(model, users)
    task = there.to(device)
    names = list(there.dataset.user_ids)
    trainer = LocalTrainer(task, LOCAL)
    origin = task.model.initial().to(device)
    expected = LocalTrainer(there, replace(LOCAL, engine="loop")).updates(
        origin.cpu(), names[:4], 0
    )
    found = trainer.updates(origin, names[:4], 0).cpu()
    ways = {
        "fedmf": lambda: trainer.add_updates(
            origin, names, 0, ClippedSum(origin.numel(), 1.0, device)
        ),
        "loop": loop(task),
    }
    facts = {"path": getattr(trainer, "path", "before"), "dimension": origin.numel()}
    facts["distance from the processor"] = float((found - expected).norm() / expected.norm())
    return Case(users, "users", ways, facts=facts)


def clip(device: torch.device, dimension: str) -> Case:
    """A group of users, clipped and added up in integers, against float32 and torch."""
    d = int(dimension)
    rows = torch.randn(max(4, ENTRIES[device.type] // d), d, device=device)
    origin = torch.randn(d, device=device)
    total = ClippedSum(d, 1.0, device)
    copied = torch.empty_like(rows)

    def by_torch() -> Tensor:
        change = rows - origin
        return change.mul_((1.0 / change.norm(dim=1)).clamp_(max=1.0)[:, None]).sum(0)

    ours = partial(total.add_updates, rows, origin)
    # A pass for norms, one for squares, one for the sum, all of which read.
    ways = {"fedmf": ours, "torch": by_torch, "copy": lambda: copied.copy_(rows)}
    return Case(len(rows), "users", ways, 1.5)


def release(device: torch.device, dimension: str, mechanism: str) -> Case:
    """Sum, noise, mean and step of the server, against the same without noise."""
    d = int(dimension)
    total = ClippedSum(d, 1.0, device)
    rule = Sgd(learning_rate=1.0, momentum=0.9).build([(d,)], HORIZON)
    inverse = MECHANISMS[mechanism]().streaming_inverse()

    def releasing(std: float) -> Callable[[], None]:
        key = NoiseKey.from_seed(0)
        stream = NoiseStream(key, Domain.TRAINING, inverse, HORIZON, d, std)
        parameters = torch.zeros(d, device=device)
        at: dict[str, Any] = {"parameters": parameters, "state": rule.init(parameters)}

        def one() -> None:
            t = stream.t
            stream.release(total.fixed_point)
            mean = NoisySum(total.fixed_point, total.unit).mean(100.0, torch.float32)
            released = RoundRelease(mean, 1.0, None)
            at["parameters"], at["state"] = rule.step(t, at["parameters"], released, at["state"])

        return one

    source_of_copy = torch.zeros(d, device=device)
    target = torch.empty(d, device=device)
    copy = partial(target.copy_, source_of_copy)
    ways = {"fedmf": releasing(2.0**31), "no noise": releasing(0.0), "copy": copy}
    # The sum is read, model and velocity are read and written: 8 + 8 + 8 bytes an entry at the
    # least.
    return Case(1, "release", ways, 3.0)


MADE: Final = {"train": train, "clip": clip, "release": release}


def seconds(body: Callable[[], object], device: torch.device) -> float:
    """Between synchronisations."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    body()
    wait()
    return time.perf_counter() - begun


def serve(device: torch.device) -> None:
    """Answer `Version.ask` on standard input."""
    case = Case(0, "", {})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "way" in asked:
                answer: dict[str, Any] = {"seconds": seconds(case.ways[asked["way"]], device)}
            else:
                case = Case(0, "", {})
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                kind, *arguments = asked["case"].split()
                case = MADE[kind](device, *arguments)
                answer = {**vars(case), "ways": list(case.ways)}
        except Exception as error:  # of another version, or memory
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), flush=True)


class Version:
    """A process that makes cases with the fedmf of a tree.

    Args:
        tree: whose.
        device: of all cases.
        limit: seconds for a turn; thrice that to make a case and for its first.
    """

    def __init__(self, tree: Path, device: str, limit: float) -> None:
        self._command = [sys.executable, __file__, "--serve", "--device", device]
        paths = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": paths}
        self._limit = limit
        self._start()

    def _start(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(self._command, env=self._environment, **pipes)

    def ask(self, first: bool = False, **asked: str) -> dict[str, Any]:
        """Its answer; "error" where there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = self._limit * (3 if first else 1)
        timer = threading.Timer(limit, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (ValueError, OSError):
            self._process.kill()
            self._start()
            return {"error": f"it ended, or gave no answer within {limit:g} s"}
        finally:
            timer.cancel()


def rows(case: str, versions: dict[str, Version], budget: float) -> Iterator[dict[str, Any]]:
    """A case in turns for so many seconds, at least three times: a row for each way and version."""
    made = {name: version.ask(first=True, case=case) for name, version in versions.items()}
    yield from ({"name": f"{case}: {name}", **a} for name, a in made.items() if "error" in a)
    if "error" in made["now"]:
        return
    keys = [
        (name, made["now"]["ways"][0]) for name, answer in made.items() if "error" not in answer
    ]
    keys += [("now", way) for way in made["now"]["ways"][1:]]
    spent: dict[tuple[str, str], list[float]] = {key: [] for key in keys}
    begun = time.monotonic()
    while (
        turns := min(map(len, spent.values()), default=0)
    ) < 4 or time.monotonic() < begun + budget:
        for name, way in list(spent):
            answer = versions[name].ask(first=not spent[name, way], way=way)
            if "error" in answer:
                yield {"name": f"{case}: {name}, {way}", **answer}
                del spent[name, way]
                if name == "now":
                    return
            else:
                spent[name, way].append(answer["seconds"])
        if turns > 100:
            break
    first = keys[0]
    copying = statistics.median(spent["now", "copy"][1:]) if ("now", "copy") in spent else 0.0
    for (name, way), times in spent.items():
        taken = statistics.median(times[1:])
        ours = way == first[1]
        ratio = statistics.median(a / b for a, b in zip(times[1:], spent[first][1:], strict=False))
        row = {"name": f"{case}: {name if ours else way}", "seconds": taken, "of now": ratio}
        row |= {
            "value": made["now"]["amount"] / taken,
            "unit": f"{made['now']['unit']}/s",
            "turns": len(times) - 1,
        }
        if copying and ours:
            row["share of a copy's bandwidth"] = made["now"]["copies"] * copying / taken
        yield row | (made[name]["facts"] if ours else {})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--before", type=Path, help="a tree of another version")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=8.0, help="of turns a case")
    parser.add_argument(
        "--limit",
        type=float,
        default=20.0,
        help="seconds for a turn; thrice that to make a case and for its first",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", action="store_true", help="answer standard input")
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        serve(torch.device(options.device))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu.py needs a CUDA device.\n")
    trees = {"now": Path(__file__).resolve().parents[2]} | (
        {"before": options.before} if options.before else {}
    )
    versions = {name: Version(tree, options.device, options.limit) for name, tree in trees.items()}
    for case in options.cases:
        for row in rows(case, versions, options.seconds):
            facts = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                for k, v in row.items()
                if k != "name"
            )
            print(json.dumps(row) if options.json else f"{row['name']:<38} {facts}", flush=True)


if __name__ == "__main__":
    main()
