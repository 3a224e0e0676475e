"""Is any one user's contribution ever above the clip norm, exactly? Drawn users, every engine, judged alone.

    python simulations/clipping/fuzz.py --users 1000000

Models, local rules, examples of scales 1e-44 … 3e38 and clip norms of 1e-36 … 1e36 are drawn. Users are added
to sums one after another; the integers n by which each changed its sum must have Σ n² ≤ 2⁸⁰ in exact
arithmetic. A line of the table is an engine and how its users are sent: in sums, or as rows of per-user
messages, which a server clips again. It says how many users were clipped, how many added zeros, how many the
merge refused, 1 − (the largest exact norm over ζ), how many users were above ζ, and which was the first.

Faults put in on purpose: ``--blind-norm``, a norm that does not see entries beyond float32; ``--gram-norm``,
that of November 2026 for engine "low-rank", from Gram matrices; ``--without-check``, a merge without checks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmf.data import InMemoryDataset
from fedmf.models import with_lora
from fedmf.moments import BlockEnergies, DiagonalMoment
from fedmf.training import SIGNS, ClippedSums, FixedPointSum, LocalSGD, Task, classification
from fedmf.training.barrier import Failures, silent
from fedmf.training.clipping import ClippedRows, kernel
from fedmf.training.fused import FusedProgram
from fedmf.training.local import LocalTrainer
from fedmf.training.low_rank import LowRankProgram

#: Compiled programs by the name of this script; "layered" and "functional" are of engine "vectorised".
PROGRAMS: Final = {"low-rank": LowRankProgram, "fused": FusedProgram, "adapted": FusedProgram}
#: Lines of the table, and the share of all users that each has: slow engines have fewer.
SHARES: Final = {
    ("low-rank", "sums"): 0.4,
    ("fused", "sums"): 0.25,
    ("layered", "sums"): 0.17,
    ("functional", "sums"): 0.05,
    ("loop", "sums"): 0.01,
    ("auto", "rows"): 0.05,
    ("functional", "rows"): 0.015,
    ("loop", "rows"): 0.005,
    ("adapted", "sums"): 0.05,
}
CLASSES: Final = 3
#: Of a task, and most in a group.
USERS, USERS_AT_ONCE = 192, 192
MOST_EXAMPLES: Final = 8
LIMIT: Final = 1 << 80
_HALF: Final = 20


class Own(nn.Module):
    """A module that no engine knows: torch.func computes its gradients."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, inputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return x.flatten(1) @ self.weight.T


def dense(rng: np.random.Generator, inputs: int, activation: type[nn.Module] | None) -> nn.Module:
    hidden, bias = int(rng.integers(3, 20)), bool(rng.integers(2))
    layers = [nn.Linear(inputs, hidden, bias=bias)]
    if activation is not None:
        layers.append(activation())  # type: ignore[arg-type]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(hidden, CLASSES))


def convolution(rng: np.random.Generator) -> nn.Module:
    channels, side = int(rng.integers(1, 6)), int(rng.choice([3, 5]))
    return nn.Sequential(
        *(nn.Conv2d(1, channels, side, padding=side // 2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(9 * channels, CLASSES)),
    )


def adapted(rng: np.random.Generator, inputs: int) -> nn.Module:
    """Low-rank adapters, B not always zero, on one layer above a frozen one or on both."""
    hidden, bias = int(rng.integers(3, 40)), bool(rng.integers(2))
    layers = (nn.Linear(inputs, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, CLASSES))
    targets = [["3"], ["1", "3"]][int(rng.integers(2))]
    module = with_lora(
        nn.Sequential(nn.Flatten(), *layers),
        int(rng.integers(1, 20)),
        float(10.0 ** rng.uniform(-1, 2)),
        targets,
    )
    for name, parameter in module.named_parameters():
        if "lora_B" in name and rng.integers(3):
            nn.init.normal_(parameter, std=float(10.0 ** rng.uniform(-3, 1)))
    return module


def module_for(engine: str, rng: np.random.Generator) -> tuple[nn.Module, tuple[int, ...]]:
    """A model that this engine trains, and the shape of its examples."""
    inputs = int(rng.integers(2, 50))
    if engine == "functional":
        return Own(inputs), (inputs,)
    if engine == "adapted":
        return adapted(rng, inputs), (inputs,)
    kind = rng.integers(5)
    if kind == 0 and engine != "low-rank":
        return convolution(rng), (1, 6, 6)
    if kind == 1:
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, CLASSES, bias=bool(rng.integers(2)))), (inputs,)
    smooth = [nn.Tanh, nn.Sigmoid] if engine != "fused" else []
    return dense(rng, inputs, rng.choice([nn.ReLU, None, *smooth])), (inputs,)  # type: ignore[arg-type]


def examples(rng: np.random.Generator, sizes: NDArray[np.int64], shape: tuple[int, ...]) -> Tensor:
    """Rows of a scale that each user has; some sparse, some that cancel the one before.

    Three of four users have scales at which most updates are finite. The others go to the edges of float32:
    anywhere, high, at the top, or rows of two scales whose product is just beyond.
    """
    users, m = np.repeat(np.arange(sizes.size), sizes), sizes.size
    rows = rng.standard_normal((users.size, int(np.prod(shape))))
    low, high = [(-8, 8), (-4, 4), (-12, 6)][int(rng.integers(3))]
    edges = rng.uniform((-44, 10, 36.5, 18), (38.5, 38.5, 38.5, 23), (m, 4))[
        np.arange(m), rng.integers(4, size=m)
    ]
    scales = np.where(rng.random(m) < 0.75, rng.uniform(low, high, m), edges)[users]
    pairs = (scales > 18) & (scales < 23) & (rng.random(users.size) < 0.5)
    scales[pairs] = rng.uniform(39, 42, pairs.sum()) - scales[pairs]
    if rng.integers(2):
        scales += rng.uniform(-3, 3, scales.size)
    rows *= 10.0 ** np.clip(scales, -44, 38.5)[:, None]
    if rng.integers(2):
        rows *= rng.random(rows.shape) < rng.choice([0.05, 0.2])
    if rng.integers(3) == 0:
        again = rng.random(users.size - 1) < 0.3
        rows[1:][again] = -rows[:-1][again] * (1 + 10.0 ** rng.uniform(-8, 0))
    return torch.from_numpy(np.clip(rows, -3.4e38, 3.4e38).astype(np.float32)).reshape(-1, *shape)


def drawn(engine: str, rng: np.random.Generator) -> tuple[Task, LocalSGD]:
    """A task with users, and a local rule."""
    module, shape = module_for(engine, rng)
    sizes = rng.integers(1, MOST_EXAMPLES, USERS)
    features = examples(rng, sizes, shape)
    labels = torch.from_numpy(rng.integers(CLASSES, size=len(features)))
    owned = tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))
    ids = tuple(f"u{u}" for u in range(USERS))
    data = InMemoryDataset(features, labels, owned, ids, features[:2], labels[:2], CLASSES)
    local = LocalSGD(
        epochs=int(rng.integers(1, 4)),
        batch_size=int(rng.integers(1, MOST_EXAMPLES + 1)),
        learning_rate=float(10.0 ** rng.uniform(-3, 1)),
        momentum=float(rng.choice([0.0, 0.9])),
        proximal=float(rng.choice([0.0, 0.1])),
        engine={"loop": "loop", "layered": "vectorised", "functional": "vectorised"}.get(engine, "auto"),
    )
    return classification(data, module), local


def usual_scale(trainer: LocalTrainer, origin: Tensor) -> float:
    """log₁₀ of what a fifth of the users' finite norms are below; 0 if all are zero."""
    updates = trainer.updates(origin, trainer.task.dataset.user_ids[:64], 0).double()
    norms = torch.linalg.vector_norm(updates, dim=1)
    norms = norms[(norms > 0) & torch.isfinite(norms)]
    return float(norms.quantile(0.2).log10()) if len(norms) else 0.0


def drawn_norm(rng: np.random.Generator, scale: float) -> float:
    """ζ: three of four times below what most updates have."""
    highest = 36.0 if rng.integers(4) == 0 else min(max(scale, -36.0), 36.0)
    return float(10.0 ** rng.uniform(-36.0, highest))


def exact_squares(integers: NDArray[np.int64]) -> list[int]:
    """Σ n² of each row in Python's integers; from halves of n where those fit."""
    if integers.size and (integers.max() > 1 << 41 or integers.min() < -(1 << 41)):
        if len(integers) == 1:
            return [sum(n * n for n in integers[0].tolist())]
        return [exact_squares(row[None])[0] for row in integers]
    high, low = integers >> _HALF, integers & ((1 << _HALF) - 1)
    products = ((x * y).sum(axis=1).tolist() for x, y in ((high, high), (high, low), (low, low)))
    return [
        (high << 2 * _HALF) + (cross << (_HALF + 1)) + low for high, cross, low in zip(*products, strict=True)
    ]


@dataclass
class Found:
    """What was seen of one engine."""

    users: int = 0
    clipped: int = 0
    zeros: int = 0
    refused: int = 0
    largest: int = 0
    above: int = 0
    first: int | None = None
    seconds: float = 0.0

    def note(self, integers: NDArray[np.int64]) -> None:
        """Users' integers, each in a row."""
        for square in exact_squares(integers):
            self.users += 1
            self.zeros += square == 0
            self.clipped += square > 0.99 * LIMIT
            self.above += square > LIMIT
            if square > LIMIT and self.first is None:
                self.first = self.users
            self.largest = max(self.largest, square)

    @property
    def missing(self) -> float:
        """1 − (the largest norm over ζ); negative if one is above."""
        return (LIMIT - self.largest) / LIMIT / (1.0 + math.sqrt(self.largest / LIMIT))


def added(
    engine: str, trainer: LocalTrainer, rng: np.random.Generator, found: Found, rows: bool
) -> Iterator[tuple[NDArray[np.int64], dict[str, list[int]]]]:
    """By what each user of a group changed their sum, and all parts of the sum after the first of them."""
    task, origin = trainer.task, trainer.task.model.initial()
    d, scale = task.model.dimension, usual_scale(trainer, origin)
    program = PROGRAMS[engine].of(task, trainer.local) if engine in PROGRAMS else None
    received = None if program is None else program.received(origin)
    for group in trainer._groups(task.dataset.user_ids, 0, Failures()):
        moment = [None, None, DiagonalMoment(d), BlockEnergies([1, d - 1])][int(rng.integers(4))]
        zeta, counted = drawn_norm(rng, scale), moment is None and rng.random() < 0.5
        sums = ClippedSums(d, zeta, moment, (SIGNS,) if counted else ())
        models = origin[:0] if received is not None else trainer._models(origin, group, Failures())
        total, seen, parts = sums.empty(), np.zeros((len(group) + 1, d), np.int64), {}
        for user in range(len(group)):
            if received is not None:
                for _, (_, reason) in received.add_to(total, group.part(user, user + 1)):
                    found.refused += "above the clip norm" in reason
            else:
                found.refused += refused(models[user : user + 1], origin, total, rows)
            seen[user + 1] = total.fixed_point.numpy()
            parts = parts or {name: part.tolist() for name, part in total.parts.items()}
        yield np.diff(seen, axis=0), parts


def refused(model: Tensor, origin: Tensor, total: FixedPointSum, row: bool) -> bool:
    """Add a user as `LocalTrainer` does, or as a row of a message; whether a finite one was left out."""
    if row:
        block = ClippedRows(1, origin.numel(), total.clip_norm)
        if not block.put([0], model, origin)[0]:
            return _seems_finite(model, origin)
        model, origin = block.block, torch.zeros_like(origin)
    return not total.add_updates(model, origin)[0] and _seems_finite(model, origin)


def _seems_finite(model: Tensor, origin: Tensor) -> bool:
    """To the norm that was taken, which may be a mistaken one."""
    partial = np.empty(kernel.BLOCK // kernel.PANEL * kernel.LANES)
    return bool(np.isfinite(kernel._squared_norm(model[0].numpy(), origin.numpy(), partial)))


def check_parts(parts: dict[str, list[int]]) -> None:
    """Features and signs of one user are those of its integers."""
    integers = parts["sum"]
    assert -1 <= parts.get("signs", [0])[0] <= 1
    if "second" in parts:
        sizes = [1] * len(integers) if len(parts["second"]) == len(integers) else [1, len(integers) - 1]
        ends = np.cumsum(sizes).tolist()
        squares = [
            sum(n * n for n in integers[end - s : end]) >> 40 for s, end in zip(sizes, ends, strict=True)
        ]
        assert parts["second"] == squares


def fuzz(engine: str, users: int, seed: int = 0, rows: bool = False, stop: bool = False) -> Found:
    """Draw users of one engine until there are so many; with ``stop``, or until one is above ζ."""
    found, begun = Found(), time.process_time()
    rng = np.random.default_rng([seed, [name for name, _ in SHARES].index(engine), rows])
    while found.users < users and not (stop and found.above):
        torch.manual_seed(int(rng.integers(2**31)))
        task, local = drawn(engine, rng)
        trainer = LocalTrainer(task, local, USERS_AT_ONCE)
        with torch.no_grad(), silent():
            for integers, parts in added(engine, trainer, rng, found, rows):
                found.note(integers)
                if found.above == 0:
                    check_parts(parts)
                if found.users >= users or (stop and found.above):
                    break
    found.seconds = time.process_time() - begun
    return found


COLUMNS: Final = ("users", "clipped", "zeros", "refused", "missing", "above", "first", "users_a_second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--users", type=int, default=100_000, help="of all engines")
    parser.add_argument("--engine", nargs="+", choices=sorted({engine for engine, _ in SHARES}))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", action="store_true", help="at the first user above the clip norm")
    for fault in ("blind-norm", "gram-norm", "without-check"):
        parser.add_argument(f"--{fault}", action="store_true", help="a fault, on purpose: see above")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    if options.blind_norm or options.gram_norm or options.without_check:
        if "FUZZ_FAULTS" not in os.environ:  # what is compiled with a fault must not be kept for others
            with tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "FUZZ_FAULTS": "1"}
                raise SystemExit(subprocess.call([sys.executable, *sys.argv], env=environment))
        import faults

        faults.put_in(options.blind_norm, options.gram_norm, options.without_check)
    if not options.json:
        print("engine      sent  " + "".join(f"{name:>15}" for name in COLUMNS))
    for (engine, sent), share in SHARES.items():
        if options.engine and engine not in options.engine:
            continue
        found = fuzz(engine, math.ceil(share * options.users), options.seed, sent == "rows", options.stop)
        row = {name: getattr(found, name, None) for name in COLUMNS}
        row["users_a_second"] = round(found.users / max(found.seconds, 1e-9))
        if options.json:
            print(json.dumps({"engine": engine, "sent": sent, **row}), flush=True)
            continue
        row["missing"] = f"{found.missing:.3g}"
        shown = ("-" if value is None else value for value in row.values())
        print(f"{engine:<12}{sent:<6}" + "".join(f"{text:>15}" for text in shown), flush=True)


if __name__ == "__main__":
    main()
