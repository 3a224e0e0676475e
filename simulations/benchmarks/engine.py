"""Users trained per second, engine by engine, on the workload of `engines/workload.py`.

    python simulations/benchmarks/engine.py [--models logistic lora mlp cnn] [--pfl-python PATH]
        [--jax-python PATH] [--fedjax-python PATH] [--threads T] [--cpus 2,3] [--repeats R] [--plot FILE]
        [--json]

Every engine runs in a process of its own, one after another, in ``--repeats`` interleaved passes; what
counts is the median round of all passes. All of them are pinned to the same ``--threads`` processors, and
torch and OpenMP get as many threads; engines of two processes need two. JAX is one jitted program of a whole
round without messages or record, and needs the Python of an environment with jax and torch; FedJAX one with
fedjax and torch. ``pfl`` needs an environment of its own (``pip install pfl==0.6.0 torch``). Without the
Python of such an environment its rows are left out, and said to be.
Baseline of the ratios: pfl in the faster of its two set-ups, or the plain PyTorch loop where there is no pfl.
The arithmetic limit is the time that the multiply-adds of the workload take at the speed of a large matrix
product, measured in the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent / "engines"
sys.path.insert(0, str(HERE))

import workload  # noqa: E402

LIMIT = "arithmetic limit"


@dataclass(frozen=True)
class Engine:
    """A row of the table.

    Args:
        name: shown.
        script: in `engines/`.
        arguments: of the script, beside the model.
        python: runs it, with its options.
    """

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    python: tuple[str, ...] = (sys.executable,)

    def seconds(self, model: str) -> list[float]:
        """Seconds of each round after the warm-up, in a new process.

        Raises:
            RuntimeError: it failed.
        """
        command = [*self.python, str(HERE / self.script), "--model", model, *self.arguments]
        path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
        if done.returncode or not lines:
            raise RuntimeError(
                f"{self.name} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
            )
        return json.loads(lines[-1])["seconds"][workload.WARM_UP :]


def engines(
    pfl_python: str | None, jax_python: str | None, fedjax_python: str | None, two: bool
) -> list[Engine]:
    """All that can run here; ``two``: also those that are two processes."""
    rows = [
        Engine("fedmf, identity", "fedmf_run.py", ("--mechanism", "identity")),
        Engine("fedmf, bisr p=4", "fedmf_run.py", ("--mechanism", "bisr")),
        Engine("fedmf loop, bisr p=4", "fedmf_run.py", ("--mechanism", "bisr", "--local-engine", "loop")),
        Engine("plain PyTorch loop", "torch_loop.py"),
    ]
    if jax_python is not None:
        rows.append(Engine("JAX, one jitted round", "jax_scan.py", python=(jax_python,)))
    if fedjax_python is not None:
        rows.append(Engine("FedJAX", "fedjax_run.py", python=(fedjax_python,)))
    if pfl_python is not None:
        rows.append(Engine("pfl, one process", "pfl_run.py", python=(pfl_python,)))
    if pfl_python is not None and two:
        torchrun = (pfl_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        rows.append(Engine("pfl, two processes", "pfl_run.py", python=torchrun))
    if two and importlib.util.find_spec("ray") is not None:
        rows.append(Engine("Flower Ray, plain FedAvg", "flower_run.py"))
    return rows


def multiply_adds_per_second() -> float:
    """Of a float32 matrix product of side 1,024 on all cores: the best of 20."""
    import torch

    a, b = torch.randn(2, 1024, 1024)
    best = float("inf")
    for _ in range(20):
        begun = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begun)
    return 1024**3 / best


def measure(
    rows: list[Engine], models: list[str], repeats: int, console: Console
) -> dict[str, dict[str, float]]:
    """Users per second by model and engine, the arithmetic limit among them."""
    seconds: dict[tuple[str, str], list[float]] = {}
    speeds = []
    for turn in range(repeats):
        speeds.append(multiply_adds_per_second())
        for model in models:
            for row in rows:
                console.print(f"pass {turn + 1}: {model}, {row.name}")
                try:
                    seconds.setdefault((model, row.name), []).extend(row.seconds(model))
                except RuntimeError as failure:  # what another package's processes do must not cost the rest
                    console.print(f"[red]left out of this pass: {failure}[/red]")
    return {
        model: {
            **{
                row.name: workload.COHORT / statistics.median(seconds[model, row.name])
                for row in rows
                if seconds[model, row.name]
            },
            LIMIT: statistics.median(speeds) / workload.multiply_adds(model),
        }
        for model in models
    }


def pinned(threads: int, asked: str) -> list[int]:
    """Pin this process, and so those that it starts, to the processors asked for, or the last it may use."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    chosen = sorted(os.sched_getaffinity(0))[-threads:]
    if asked:
        chosen = sorted(int(cpu) for cpu in asked.split(","))
    if len(chosen) != threads:
        raise SystemExit(f"--cpus must name {threads} processors; got {asked!r}.")
    os.sched_setaffinity(0, chosen)
    return chosen


def machine(cpus: list[int]) -> str:
    """What the figures were measured on, and how busy it was."""
    names = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    today = time.strftime("%Y-%m-%d")
    return f"{today}, {'; '.join(names)}, {os.cpu_count()} processors, pinned to {cpus}, load {load}"


def baseline_of(rates: dict[str, float]) -> str:
    """What ratios are relative to: pfl at its best, else the plain loop."""
    peers = [name for name in rates if name.startswith("pfl")] or ["plain PyTorch loop"]
    return max(peers, key=rates.__getitem__)


def show(results: dict[str, dict[str, float]], console: Console) -> None:
    for model, rates in results.items():
        baseline = baseline_of(rates)
        table = Table(title=f"{model}: users per second, median round of {workload.COHORT} users")
        for heading in ("engine", "users/s", f"against {baseline}", "share of the limit"):
            table.add_column(heading, justify="left" if heading == "engine" else "right")
        for name, rate in rates.items():
            share = "" if name == LIMIT else f"{rate / rates[LIMIT]:.1%}"
            table.add_row(name, f"{rate:,.0f}", f"{rate / rates[baseline]:.2f}", share)
        console.print(table)


def draw(results: dict[str, dict[str, float]], path: Path) -> None:
    """Bars on a logarithmic axis, one panel a model."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(results), figsize=(5.5 * len(results), 3.2), squeeze=False)
    for panel, (model, rates) in zip(panels[0], results.items(), strict=True):
        names = list(rates)[::-1]
        bars = panel.barh(names, [rates[name] for name in names], log=True)
        panel.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
        panel.set(title=model, xlabel="users per second", xlim=(None, 3 * max(rates.values())))
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", choices=workload.MODELS, default=list(workload.MODELS))
    parser.add_argument("--pfl-python", help="Python of an environment that has pfl 0.6.0")
    parser.add_argument("--jax-python", help="Python of an environment that has jax and torch")
    parser.add_argument("--fedjax-python", help="Python of an environment that has fedjax and torch")
    parser.add_argument("--cpus", default="", help="which processors, as many as threads: 2,3")
    parser.add_argument("--threads", type=int, default=1, help="of every engine")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="write a picture here")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    options = parser.parse_args()
    messages = Console(stderr=True)
    os.environ |= dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(options.threads)
    )
    for name in ("pfl", "jax", "fedjax"):
        if getattr(options, f"{name}_python") is None:
            messages.print(f"{name} is left out: no --{name}-python given.")
    if options.threads < 2:
        messages.print("Engines of two processes are left out: --threads is 1.")
    cpus = pinned(options.threads, options.cpus)
    messages.print(f"begun: {machine(cpus)}")
    peers = options.pfl_python, options.jax_python, options.fedjax_python
    results = measure(engines(*peers, options.threads > 1), options.models, options.repeats, messages)
    messages.print(f"ended: {machine(cpus)}")
    if options.plot is not None:
        draw(results, options.plot)
    if not options.json:
        show(results, Console())
        return
    for model, rates in results.items():
        baseline = rates[baseline_of(rates)]
        for name, rate in rates.items():
            row = {"name": f"{model}: {name}", "value": rate, "unit": "users/s"}
            print(json.dumps({**row, "baseline": baseline, "ratio": rate / baseline}))


if __name__ == "__main__":
    main()
