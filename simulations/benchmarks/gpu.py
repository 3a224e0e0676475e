"""Users trained per second on a GPU, and the parts of a round, in one call of eight minutes.

    python simulations/benchmarks/gpu.py [--before NAME=TREE ...] [--cohorts 100 500 5000]
        [--models mlp ...] [--cases CASE ...] [--minutes 7.5] [--device cuda] [--json]

Cases:
    train MODEL      users of `engine.py` in cohorts of several sizes: train, clip and add
    check MODEL      whether other users change a user's bits, the device's integers against the
                     processor's, and how often a round waits for the GPU
    groups MODEL     groups of several sizes in the largest cohort
    clip D, release D MECHANISM    the server's parts of a round
    compile MODEL    the step of torch.func as it is, by torch.compile, and with CUDA graphs

Each version has a process of its own, which makes a case and is then asked for one turn after
another; TREE is another version of this repository, of which only users are trained. Seconds lie
between synchronisations, the first turn is left out, and figures are medians over turns. A case
that fails, or that does not answer within the limit, is reported, and the next one follows; after
``--minutes`` the rest is left out. At the end there is a table in Markdown; with ``--json`` it goes
to standard error, and each row is a JSON object. ``--device cpu`` rehearses all of it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

if importlib.util.find_spec("fedmf.clipping") is None:  # an older version, which had another name
    import fedmf.training

    _sums: Any = ModuleType("fedmf.clipping.clipped_sum")
    _training: Any = fedmf.training
    _sums.ClippedSum = _training.FixedPointSum
    sys.modules["fedmf.clipping"] = ModuleType("fedmf.clipping")
    sys.modules["fedmf.clipping.clipped_sum"] = _sums

from engine import LOCAL, loop, task_of

from fedmf.clipping.clipped_sum import ClippedSum
from fedmf.training import LocalTrainer, Task

MODELS: Final = ("mlp", "cnn", "lora", "transformer", "lenet", "resnet-gn", "lstm")
MECHANISMS: Final = ("identity", "bisr", "toeplitz", "blt")
HORIZON: Final = 256
#: Entries of rows that are clipped, and of a released vector, by device.
ENTRIES: Final = {"cuda": 10**9, "cpu": 10**7}
RELEASED: Final = {"cuda": 10**8, "cpu": 10**6}
#: Users whose bits are compared.
COMPARED: Final = 32
#: Sizes of groups that are compared in the largest cohort.
GROUPS: Final = (64, 256, 1024, 4096)
#: The way to train that needs no package.
LOOP: Final = "a loop of torch"
#: Most turns of a way.
TURNS: Final = 50


@dataclass(frozen=True)
class Case:
    """The ways to do something that are timed.

    Args:
        unit: of the amounts.
        amounts: how much a turn of each way does, in ``unit``.
        ways: the functions by name.
        copies: how many copies of a vector of d numbers move as little as fedmf's way must; the way
            "copy" makes one.
        facts: what was found while the case was made.
    """

    unit: str
    amounts: Mapping[str, float]
    ways: Mapping[str, Callable[[], object]]
    copies: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Subject:
    """A model with its users on a device.

    Args:
        here: the task on the processor.
        task: the same on the device.
        names: of all users.
        origin: θ_0 on the device.
    """

    here: Task
    task: Task
    names: Sequence[str]
    origin: Tensor

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, model: str, users: int, device: torch.device) -> Subject:
        """Make it, or take the last one that was made."""
        here = task_of(model, users)
        origin = here.model.initial().to(device)
        return cls(here, here.to(device), list(here.dataset.user_ids), origin)


class Training:
    """Trains the first users of a subject, clips and adds.

    Args:
        subject: model and users.
        trainer: the trainer.
        users: how many.
    """

    def __init__(self, subject: Subject, trainer: LocalTrainer, users: int) -> None:
        self._subject = subject
        self._trainer = trainer
        self._users = users

    def __call__(self) -> None:
        origin = self._subject.origin
        total = ClippedSum(origin.numel(), 1.0, origin.device)
        self._trainer.add_updates(origin, self._subject.names[: self._users], 0, total)

    @property
    def group(self) -> int | None:
        """Users that were trained together in the last turn; None for an older version."""
        if getattr(self._trainer, "path", "") != "vmap":
            return None
        return self._trainer._workers.of_thread.size


def train(device: torch.device, cohorts: Sequence[int], model: str) -> Case:
    """Cohorts of several sizes; how far four updates are from the processor's."""
    subject = Subject.of(model, max(cohorts), device)
    trainer = LocalTrainer(subject.task, LOCAL)
    names = subject.names[:4]
    reference = LocalTrainer(subject.here, replace(LOCAL, engine="loop"))
    expected = reference.updates(subject.origin.cpu(), names, 0)
    updates = trainer.updates(subject.origin, names, 0).cpu()
    ways: dict[str, Callable[[], object]] = {}
    ways |= {f"{users} users": Training(subject, trainer, users) for users in cohorts}
    amounts = {f"{users} users": float(users) for users in cohorts}
    few = min(cohorts)
    ways[LOOP] = loop(task_of(model, few).to(device))
    amounts[LOOP] = float(few)
    facts = {"path": getattr(trainer, "path", "older"), "dimension": subject.origin.numel()}
    facts["distance from the processor"] = float((updates - expected).norm() / expected.norm())
    return Case("users", amounts, ways, facts=facts)


def check(device: torch.device, cohorts: Sequence[int], model: str) -> Case:
    """Whether a user's update depends on others, and a sum of the same updates on the device."""
    subject = Subject.of(model, max(cohorts), device)
    trainer = LocalTrainer(subject.task, LOCAL)
    facts = {**independence(subject, trainer, COMPARED), **integers(subject, trainer)}
    facts |= calls(Training(subject, trainer, sorted(cohorts)[len(cohorts) // 2]))
    return Case("users", {}, {}, facts=facts)


def calls(training: Training) -> dict[str, int]:
    """How often a round starts a kernel, and how often it waits for the GPU."""
    training()
    with torch.profiler.profile() as profile:
        training()
    counts = {event.key: event.count for event in profile.key_averages()}
    waiting = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    starting = ("cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx")
    return {
        "waits in a round": sum(counts.get(name, 0) for name in waiting),
        "kernels in a round": sum(counts.get(name, 0) for name in starting),
    }


def independence(subject: Subject, trainer: LocalTrainer, users: int) -> dict[str, Any]:
    """How far a user's update moves with others in its group: A with B, A with C, A with B.

    So many users are trained each time, or half of all.
    """
    count = min(users, (len(subject.names) + 1) // 2) - 1
    user, *others = subject.names[: 2 * count + 1]
    among = {
        "B": [user, *others[:count]],
        "C": [user, *others[count:]],
        "B again": [user, *others[:count]],
        "B, in the last place": [*others[:count], user],
    }
    rows = {
        name: trainer.updates(subject.origin, group, 0)[group.index(user)].cpu()
        for name, group in among.items()
    }
    first = rows.pop("B")
    return {
        f"A with {name}": "same bits" if torch.equal(first, row) else float((first - row).norm())
        for name, row in rows.items()
    }


def integers(subject: Subject, trainer: LocalTrainer) -> dict[str, Any]:
    """How far the device's sum of some updates is from the processor's, in units."""
    updates = trainer.updates(subject.origin, subject.names[:COMPARED], 0)
    sums: list[Tensor] = []
    for device in (updates.device, torch.device("cpu")):
        total = ClippedSum(subject.origin.numel(), 1.0, device)
        total.add_updates(updates.to(device))
        sums.append(total.fixed_point.cpu())
    difference = (sums[0] - sums[1]).abs()
    return {
        "largest difference of integers": int(difference.max()),
        "equal integers": float((difference == 0).double().mean()),
    }


def compile_steps(device: torch.device, cohorts: Sequence[int], model: str) -> Case:
    """The step of torch.func as it is, compiled, and compiled and captured as a CUDA graph.

    The facts say whether others change a user's bits in the compiled one.
    """
    users = sorted(cohorts)[len(cohorts) // 2]
    subject = Subject.of(model, max(cohorts), device)
    trainers = {"as it is": LocalTrainer(subject.task, LOCAL, path="vmap")}
    for name, mode in {"torch.compile": "default", "CUDA graphs": "reduce-overhead"}.items():
        if mode != "default" and device.type != "cuda":
            continue
        trainer = LocalTrainer(subject.task, LOCAL, path="vmap", threads=1)
        engine: Any = trainer._workers.of_thread
        engine._gradients = torch.compile(engine._gradients, dynamic=False, mode=mode)
        trainers[name] = trainer
    ways = {name: Training(subject, trainer, users) for name, trainer in trainers.items()}
    facts = independence(subject, trainers["torch.compile"], users)
    return Case("users", dict.fromkeys(ways, float(users)), ways, facts=facts)


def groups(device: torch.device, cohorts: Sequence[int], model: str) -> Case:
    """The largest cohort in groups of several sizes."""
    users = max(cohorts)
    subject = Subject.of(model, users, device)
    ways: dict[str, Callable[[], object]] = {}
    for size in GROUPS:
        if size > 2 * users:
            break
        trainer = LocalTrainer(subject.task, LOCAL, path="vmap", threads=1)
        engine: Any = trainer._workers.of_thread
        engine.size = engine._largest = size
        ways[f"groups of {size}"] = Training(subject, trainer, users)
    return Case("users", dict.fromkeys(ways, float(users)), ways)


def clip(device: torch.device, cohorts: Sequence[int], dimension: str) -> Case:
    """A group of users, clipped and added up in integers, against float32 and torch."""
    del cohorts
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
    return Case("users", dict.fromkeys(ways, float(len(rows))), ways, 1.5)


def release(device: torch.device, cohorts: Sequence[int], dimension: str, mechanism: str) -> Case:
    """Sum, noise, mean and step of the server, against the same without noise."""
    from fedmf.mechanisms.banded_toeplitz import banded_toeplitz
    from fedmf.mechanisms.blt_family import blt
    from fedmf.mechanisms.closed_forms import bisr, identity
    from fedmf.noise.key import Domain, NoiseKey
    from fedmf.noise.noise_stream import NoiseStream
    from fedmf.optim import RoundRelease, Sgd
    from fedmf.participation import Participation
    from fedmf.release.noisy_sum import NoisySum

    del cohorts
    contract = Participation(HORIZON, 64, 4)
    # None of them keeps more than four vectors.
    factorizations = {
        "identity": lambda: identity(HORIZON),
        "bisr": lambda: bisr(4, HORIZON),
        "toeplitz": lambda: banded_toeplitz(4, contract),
        "blt": lambda: blt(4, contract),
    }
    d = int(dimension)
    total = ClippedSum(d, 1.0, device)
    rule = Sgd(learning_rate=1.0, momentum=0.9).build([(d,)], HORIZON)
    inverse = factorizations[mechanism]().streaming_inverse()

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
    return Case("releases", dict.fromkeys(ways, 1.0), ways, 3.0)


MAKE: Final[dict[str, Callable[..., Case]]] = {
    "train": train,
    "check": check,
    "compile": compile_steps,
    "groups": groups,
    "clip": clip,
    "release": release,
}


def seconds(body: Callable[[], object], device: torch.device) -> float:
    """Seconds between synchronisations."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    body()
    wait()
    return time.perf_counter() - start


def largest_memory(device: torch.device) -> int:
    """The most bytes of the device that were in use since the last turn, or of the process."""
    if device.type != "cuda":
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return most


def serve(device: torch.device) -> None:
    """Answer `Version.ask` on standard input."""
    case = Case("", {}, {})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "way" in asked:
                body = case.ways[asked["way"]]
                spent = seconds(body, device)
                answer: dict[str, Any] = {"seconds": spent, "bytes": largest_memory(device)}
                answer["group"] = getattr(body, "group", None)
            else:
                case = Case("", {}, {})
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                kind, *arguments = asked["case"].split(maxsplit=1)
                if kind == "release":
                    arguments = arguments[0].split()
                case = MAKE[kind](device, asked["cohorts"], *arguments)
                answer = {**vars(case), "ways": list(case.ways)}
        except Exception as error:  # of another version, or memory
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), flush=True)


class Version:
    """A process that makes cases with the fedmf of a tree.

    Args:
        tree: the tree.
        device: of all cases.
        limit: seconds for a turn; thrice that to make a case and for its first turn.
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

    def ask(self, first: bool = False, **asked: Any) -> dict[str, Any]:
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


Row = dict[str, Any]


def rows(
    case: str, versions: dict[str, Version], cohorts: list[int], budget: float, limit: float
) -> Iterator[Row]:
    """Time each way of a case for so many seconds, in turns of the versions: a row for each."""
    asked = versions if case.startswith("train") else {"now": versions["now"]}
    with ThreadPoolExecutor() as pool:
        making = {
            name: pool.submit(version.ask, first=True, case=case, cohorts=cohorts)
            for name, version in asked.items()
        }
    made: dict[str, dict[str, Any]] = {}
    for name, answer in making.items():
        if "error" in answer.result():
            yield {"case": case, "way": "", "version": name, **answer.result()}
        else:
            made[name] = answer.result()
    facts = made.get("now", {}).get("facts", {})
    if facts:
        yield {"case": case, "way": "", "version": "now", **facts}
    users_a_second = 0.0
    copying = 0.0
    timed: list[Row] = []
    for way in made.get("now", {}).get("ways", []):
        amount = made["now"]["amounts"][way]
        if users_a_second and amount / users_a_second > limit:
            error = f"left out: a turn takes some {amount / users_a_second:.0f} s"
            yield {"case": case, "way": way, "version": "now", "error": error}
            continue
        answering = {name: versions[name] for name in made if name == "now" or way != LOOP}
        for row in timed_way(way, answering, budget):
            row = {"case": case, **row}
            if "seconds" in row:
                row["value"] = amount / row["seconds"]
                row["unit"] = f"{made['now']['unit']}/s"
                timed.append(row)
                if way == "copy":
                    copying = row["seconds"]
                if row["version"] == "now" and made["now"]["unit"] == "users":
                    users_a_second = row["value"]
            yield row
    for row in timed:
        if copying and row["way"] == "fedmf":
            share = made["now"]["copies"] * copying / row["seconds"]
            yield {**row, "way": "fedmf, share of a copy's bandwidth", "value": share, "unit": ""}


def timed_way(way: str, versions: Mapping[str, Version], budget: float) -> Iterator[Row]:
    """Turns of a way by each version, one after the other: median seconds and largest memory."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in versions}
    start = time.monotonic()
    for turn in range(TURNS):
        if turn > 1 and time.monotonic() > start + budget:
            break
        for name in list(answers):
            answer = versions[name].ask(first=not turn, way=way)
            if "error" in answer:
                yield {"way": way, "version": name, **answer}
                del answers[name]
            else:
                answers[name].append(answer)
    for name, all_answers in answers.items():
        yield {
            "way": way,
            "version": name,
            "seconds": statistics.median(answer["seconds"] for answer in all_answers[1:]),
            "turns": len(all_answers) - 1,
            "bytes": max(answer["bytes"] for answer in all_answers),
            "group": all_answers[-1]["group"],
        }


def line_of(row: Row) -> str:
    """A row for people."""
    known = ("case", "way", "version")
    facts = [f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()]
    facts = facts[len(known) :]
    return f"{row['case']:<28} {row['way']:<34} {row['version']:<9} {', '.join(facts)}"


def table(all_rows: list[Row], versions: Sequence[str]) -> str:
    """The figures in Markdown: a line for each way, a column for each version."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    notes: list[str] = []
    for row in all_rows:
        if "value" in row:
            cell = cells.setdefault((row["case"], row["way"]), {})
            cell[row["version"]] = f"{row['value']:,.4g} {row['unit']}".strip()
            if row["version"] == "now":
                cell["memory"] = f"{row['bytes'] / 2**20:,.0f} MiB"
                cell["group"] = str(row["group"] or "")
        else:
            notes.append(line_of(row))
    lines = [f"| case | way | {' | '.join(versions)} | group | memory |"]
    lines.append("|" + "---|" * (len(versions) + 4))
    for (case, way), cell in cells.items():
        figures = [cell.get(name, "") for name in (*versions, "group", "memory")]
        lines.append(f"| {case} | {way} | {' | '.join(figures)} |")
    return "\n".join([*lines, "", *notes])


def all_cases(models: Sequence[str], device: str) -> list[str]:
    """The cases in the order of their weight, since time may run out."""
    d = RELEASED[device]
    cases = [f"{kind} {model}" for kind in ("train", "check", "groups") for model in models]
    cases += ["clip 10000000", *(f"release {d} {name}" for name in MECHANISMS)]
    return [*cases, *(f"compile {model}" for model in models)]  # minutes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--cohorts", type=int, nargs="+", default=[100, 500, 5000])
    parser.add_argument("--cases", nargs="+", help="only these")
    parser.add_argument(
        "--before", nargs="+", default=[], metavar="NAME=TREE", help="other versions"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=7.5, help="for all cases")
    parser.add_argument("--seconds", type=float, default=1.0, help="of turns of each way")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for a turn")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        torch.set_num_threads(1)
        serve(torch.device(options.device))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "gpu.py needs a CUDA device; --device cpu rehearses it.\n")
    end = time.monotonic() + 60 * options.minutes
    trees = {"now": Path(__file__).resolve().parents[2]}
    for before in options.before:
        name, _, tree = before.partition("=")
        trees[name] = Path(tree)
    versions = {name: Version(tree, options.device, options.limit) for name, tree in trees.items()}
    found: list[Row] = []
    for case in options.cases or all_cases(options.models, options.device):
        if time.monotonic() > end:
            found.append({"case": case, "way": "", "version": "now", "error": "no time was left"})
            continue
        for row in rows(case, versions, options.cohorts, options.seconds, options.limit):
            found.append(row)
            print(json.dumps(row) if options.json else line_of(row), flush=True)
    print(table(found, list(trees)), file=sys.stderr if options.json else sys.stdout)


if __name__ == "__main__":
    main()
