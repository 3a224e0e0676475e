"""A round on a GPU, part by part: clip and sum, noise and step, local training, adapters of a large model.

    python simulations/benchmarks/gpu.py [--only PART]... [--dimensions D]... [--repeats R] [--json]

Times are medians of R between synchronisations, after one that compiles. A copy of n bytes moves 2n; the rate
of a copy of the model in the same table is the limit that memory sets. Baselines run in the same process:
torch's own operations for clipping (change, norm, scale, sum), noise that is not correlated for releases, the
processors of the machine for training.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from engine import cnn
from torch import Tensor, nn

import fedmf
from fedmf.data import InMemoryDataset
from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
from fedmf.mechanisms.blt import blt
from fedmf.mechanisms.closed_forms import bisr, identity
from fedmf.mechanisms.matrix import Factorization
from fedmf.models import LogitsOf, mlp, with_lora
from fedmf.models.architecture import Residual
from fedmf.models.attention import Positions, SelfAttention
from fedmf.noise import Domain, GaussianSource, NoiseKey, NoiseStream
from fedmf.optim import RoundRelease, Sgd
from fedmf.optim.server_pass import ServerPass
from fedmf.participation import Participation
from fedmf.runs.loop import RoundRecord
from fedmf.runs.simulation import run_in_process
from fedmf.training import FixedPointSum, Task, classification, next_token

#: A value, what it is of, and what it is compared with.
Row = dict[str, Any]
DIMENSIONS: Final = (10**6, 10**7, 10**8, 10**9)
#: Entries of all rows of a group together.
ENTRIES: Final = 4 * 10**9
HORIZON: Final = 64
#: Factorizations: none is kept by more than four vectors.
MECHANISMS: Final[dict[str, Callable[[], Factorization]]] = {
    "independent": lambda: identity(HORIZON),
    "bisr, 4 bands": lambda: bisr(4, HORIZON),
    "banded Toeplitz, 4 bands": lambda: banded_toeplitz(4, Participation(HORIZON, 16, 4)),
    "BLT, 4 buffers": lambda: blt(4, Participation(HORIZON, 16, 4)),
}
GPU: Final = torch.device("cuda")


def seconds(body: Callable[[], object], repeats: int) -> float:
    """The median, on the device."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        body()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def copying(dimension: int, repeats: int) -> float:
    """Bytes a second that a copy of the model moves."""
    source = torch.zeros(dimension, device=GPU)
    target = torch.empty_like(source)
    return 8.0 * dimension / seconds(lambda: target.copy_(source), repeats)


def clipping(dimension: int, repeats: int) -> Iterator[Row]:
    """A group of users, clipped and added up in integers."""
    users = max(4, min(1000, ENTRIES // dimension))
    rows = torch.randn(users, dimension, device=GPU)
    origin = torch.randn(dimension, device=GPU)
    total = FixedPointSum(dimension, 1.0, GPU)
    ours = seconds(lambda: total.add_updates(rows, origin), repeats)

    def by_torch() -> Tensor:
        change = rows - origin
        return change.mul_((1.0 / change.norm(dim=1)).clamp_(max=1.0)[:, None]).sum(0)

    theirs = seconds(by_torch, repeats)
    name, rate = f"{users} users clipped and summed", copying(dimension, repeats)
    yield row(name, ours, "s", "torch: change, norm, scale, float32 sum", theirs / ours)
    yield row(f"{name}, a pass for norms, one for squares, one for the sum", 12.0 * users * dimension / ours,
              "B/s", "copy", 12.0 * users * dimension / ours / rate)  # fmt: skip


def releases(dimension: int, repeats: int) -> Iterator[Row]:
    """Sum, noise, mean and step of the server."""
    rate = copying(dimension, repeats)
    parameters = torch.zeros(dimension, device=GPU)
    total = FixedPointSum(dimension, 1.0, GPU)
    rule = Sgd(learning_rate=1.0, momentum=0.9).build([(dimension,)], HORIZON)
    alone: float | None = None
    for name, mechanism in (("no noise", MECHANISMS["independent"]), *MECHANISMS.items()):
        inverse = mechanism().recurrence()
        source = GaussianSource(NoiseKey.from_seed(0), dimension, Domain.TRAINING)
        noise = NoiseStream(source, inverse, HORIZON, device=GPU)
        whole = ServerPass(noise, 100.0, 0.0 if name == "no noise" else 1.0)
        at = {"t": 0, "theta": parameters, "state": rule.init(parameters)}

        def release(whole: ServerPass = whole, at: dict[str, Any] = at) -> None:
            t = at["t"]
            mean = whole.mean(t, total, parameters)
            at["theta"], at["state"] = rule.step(t, at["theta"], RoundRelease(mean, 1.0, None), at["state"])
            at["t"] = t + 1

        try:
            spent = seconds(release, min(repeats, HORIZON - 2))
        except torch.OutOfMemoryError:
            yield row(f"{name}: out of memory", 0.0, "s", "", 0.0)
            continue
        alone = spent if name == "independent" else alone
        yield row(f"{name}: release", spent, "s", "independent", spent / (alone or spent))
        # The sum is read, model and velocity are read and written: 8 + 8 + 8 bytes an entry at the least.
        yield row(f"{name}: least traffic", 24.0 * dimension / spent, "B/s", "copy",
                  24.0 * dimension / spent / rate)  # fmt: skip
        del noise, whole, at, release
        forget()


def examples(users: int, each: int, classes: int, positions: int) -> InMemoryDataset:
    """Made up: images of 28×28, or texts."""
    generator = torch.Generator().manual_seed(0)
    count = users * each
    if positions:
        texts = torch.randint(classes, (count, positions + 1), generator=generator)
        features, labels = texts[:, :-1].contiguous(), texts[:, 1:].contiguous()
    else:
        features = torch.randn(count, 1, 28, 28, generator=generator)
        labels = torch.randint(classes, (count,), generator=generator)
    owned = tuple(np.arange(count).reshape(users, each))
    names = tuple(f"u{u:05d}" for u in range(users))
    return InMemoryDataset(features, labels, owned, names, features[:8], labels[:8])


def transformer(
    vocabulary: int, positions: int, width: int, layers: int, heads: int, inner: int
) -> nn.Module:
    """Blocks of causal attention and two dense layers, norms before each."""
    blocks: list[nn.Module] = []
    for _ in range(layers):
        dense = [nn.LayerNorm(width), nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)]
        blocks += [
            Residual(nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads, causal=True))),
            Residual(nn.Sequential(*dense)),
        ]
    return nn.Sequential(
        *(nn.Embedding(vocabulary, width, padding_idx=0), Positions(positions, width), *blocks),
        *(nn.LayerNorm(width), nn.Linear(width, vocabulary)),
    )


def task(model: str, users: int, each: int) -> Task:
    """A model and the examples of its users."""
    torch.manual_seed(0)
    if model == "transformer":
        return next_token(examples(users, each, 1000, 32), transformer(1000, 32, 128, 4, 4, 512), 1000)
    images = cnn() if model == "cnn" else nn.Sequential(nn.Flatten(), mlp(784, (512,), 10, seed=0))
    return classification(examples(users, each, 10, 0), images)


def rounds(of: Task, size: int, batch: int, mechanism: str, device: str, **local: Any) -> list[float]:
    """Seconds of each round of a run in this process, messages, ledger and commits included."""
    spent: list[float] = []
    run = fedmf.Run(
        task=of,
        cohorts=fedmf.CyclicCohorts(rounds=6, users_per_round=size),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=1.0, noise_seed=0),
        client=fedmf.LocalSGD(batch_size=batch, learning_rate=0.1, **local),
        mechanism=mechanism,
        server=Sgd(learning_rate=0.1),
    )
    run = dataclasses.replace(run, execution=dataclasses.replace(run.execution, evaluate_every=10**6))

    def note(record: RoundRecord) -> None:
        report = record.report
        assert report is not None
        assert report.present == size, report
        assert not report.failures, report.failures[:1]
        spent.append(report.seconds)

    with tempfile.TemporaryDirectory() as folder, fedmf.start(run, Path(folder) / "run", device) as session:
        run_in_process(session, note)
    return spent


#: Model, users of a cohort, examples of each, examples of a step.
TRAINED: Final = (("mlp", 500, 20, 10), ("cnn", 500, 20, 10), ("transformer", 200, 16, 8))


def training(repeats: int) -> Iterator[Row]:
    """Whole rounds, on the GPU and on all processors; correlated and independent noise."""
    del repeats
    for model, size, each, batch in TRAINED:
        of = task(model, 2 * size, each)
        on_gpu = statistics.median(rounds(of, size, batch, "identity", "cuda")[2:])
        forget()
        name = f"{model}, d = {of.model.dimension:,}, {size} users"
        processors = statistics.median(rounds(of, size, batch, "identity", "cpu")[2:])
        yield row(f"{name}: users trained", size / on_gpu, "users/s", "processors", processors / on_gpu)
        correlated = statistics.median(rounds(of, size, batch, "bisr", "cuda")[2:])
        yield row(f"{name}: round with bisr", correlated, "s", "identity", correlated / on_gpu)
        forget()


def adapters(repeats: int) -> Iterator[Row]:
    """A round of low-rank adapters of rank 8 on every dense layer of a large decoder."""
    del repeats
    shape = {"vocab_size": 32_000, "n_positions": 128, "n_embd": 1280, "n_layer": 36, "n_head": 20}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**shape, **still, bos_token_id=0, eos_token_id=0, attn_implementation="eager")  # pyright: ignore[reportCallIssue]
    with torch.device("cuda"):
        base = GPT2LMHeadModel(config)
    weights = sum(p.numel() for p in base.parameters())
    adapted = LogitsOf(with_lora(base.cpu(), rank=8, alpha=16.0, seed=0))
    each, size = 8, 16
    for precision in ("float32", "bfloat16"):
        of = next_token(examples(2 * size, each, 32_000, 128), adapted, 32_000)
        begin = time.perf_counter()
        spent = rounds(of, size, 4, "bisr", "cuda", precision=precision, micro_batch=4)
        ready = time.perf_counter() - begin - sum(spent)
        name = f"GPT-2 of {weights:,} weights, d = {of.model.dimension:,}, {size} users, {precision}"
        tokens = size * each * 128
        yield row(f"{name}: round", statistics.median(spent[2:]), "s", "", 0.0)
        yield row(f"{name}: tokens", tokens / statistics.median(spent[2:]), "tokens/s", "", 0.0)
        yield row(f"{name}: start", ready, "s", "", 0.0)
        yield row(f"{name}: peak of torch's memory", torch.cuda.max_memory_allocated(), "B", "", 0.0)
        forget()


def row(name: str, value: float, unit: str, baseline: str, ratio: float) -> Row:
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio or None}


def forget() -> None:
    """Give memory back between subjects."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def show(found: Row, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found), flush=True)
        return
    ratio = "" if found["ratio"] is None else f"{found['ratio']:8.3f} of {found['baseline']}"
    print(f"{found['name']:<78} {found['value']:>12.5g} {found['unit']:<8} {ratio}", flush=True)


BY_DIMENSION: Final = {"clip": clipping, "release": releases}
ONCE: Final = {"training": training, "adapters": adapters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=[*BY_DIMENSION, *ONCE])
    parser.add_argument("--dimensions", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "gpu.py needs a CUDA device.\n")
    wanted = options.only or [*BY_DIMENSION, *ONCE]
    show(row(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1], "B", "", 0.0), options.json)
    for d in options.dimensions or DIMENSIONS:
        if wanted != ["training"]:
            show(row(f"d = {d:,}: copy", copying(d, options.repeats), "B/s", "", 0.0), options.json)
        for name in (name for name in BY_DIMENSION if name in wanted):
            for found in BY_DIMENSION[name](d, options.repeats):
                show({**found, "name": f"d = {d:,}: {found['name']}"}, options.json)
            forget()
    for name in (name for name in ONCE if name in wanted):
        for found in ONCE[name](options.repeats):
            show(found, options.json)


if __name__ == "__main__":
    main()
