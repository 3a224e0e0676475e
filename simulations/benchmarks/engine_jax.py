"""The users of `engine.py` trained in JAX as an expert writes it: one compiled pass that scans over
users.

Started by `engine.py --peers jax jax-privacy`; that Python needs jax, and for the second
jax-privacy, whose transformation then clips and sums what users make of the model, one at a time,
which is its fastest here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np

EXAMPLES = 20
BATCH = 10
CLASSES = 10
RATE = 0.1
SIZES = {"logistic": (784, CLASSES), "mlp": (784, 128, 64, CLASSES), "lora": (784, 128, CLASSES)}
SIZES["small mlp"] = (784, 64, CLASSES)
RANK = 8
Arrays = dict[str, Any]


def arrays(sizes: dict[str, tuple[int, ...]]) -> Arrays:
    """Normal numbers, divided by the root of the number of inputs."""
    generator = np.random.default_rng(0)
    drawn = {
        name: generator.standard_normal(shape) / shape[0] ** 0.5 for name, shape in sizes.items()
    }
    return {name: jnp.asarray(value, jnp.float32) for name, value in drawn.items()}


def layers(model: str) -> Arrays:
    """Weights and biases of dense layers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (a, b) in enumerate(zip(SIZES[model], SIZES[model][1:], strict=False)):
        shapes |= {f"w{i}": (a, b), f"b{i}": (b,)}
    return arrays(shapes)


def outputs(p: Arrays, x: Any) -> Any:
    """Dense layers with ReLU between; the last with an adapter where there is one."""
    last = max(int(name[1:]) for name in p if name[0] == "w")
    for i in range(last):
        x = jax.nn.relu(x @ p[f"w{i}"] + p[f"b{i}"])
    whole = x @ p[f"w{last}"] + p[f"b{last}"]
    return whole + x @ p["down"] @ p["up"] if "down" in p else whole


def make(model: str, users: int, library: str) -> Callable[[], object] | None:
    """Trains all users once; None for a model that is not here."""
    if model not in SIZES:
        return None
    start = layers(model)
    frozen = Arrays()
    if model == "lora":
        adapter = arrays({"down": (128, RANK), "up": (RANK, CLASSES)})
        frozen = start
        start = adapter | {"up": 0 * adapter["up"]}
    generator = np.random.default_rng(1)
    features = jnp.asarray(generator.standard_normal((users, EXAMPLES, 784)), jnp.float32)
    labels = jnp.asarray(generator.integers(CLASSES, size=(users, EXAMPLES)))

    def loss(p: Arrays, x: Any, y: Any) -> Any:
        logits = jax.nn.log_softmax(outputs(frozen | p, x))
        return -jnp.take_along_axis(logits, y[:, None], 1).mean()

    def moved(p: Arrays, x: Any, y: Any, key: Any) -> Arrays:
        start = p
        for rows in jnp.split(jax.random.permutation(key, EXAMPLES), EXAMPLES // BATCH):
            slopes = jax.grad(loss)(p, x[rows], y[rows])
            p = jax.tree.map(lambda w, g: w - RATE * g, p, slopes)
        return jax.tree.map(jnp.subtract, p, start)

    def clipped(p: Arrays, x: Any, y: Any, key: Any) -> Arrays:
        update = moved(p, x, y, key)
        norm = jnp.sqrt(sum(jnp.sum(part * part) for part in jax.tree.leaves(update)))
        return jax.tree.map(lambda part: part * jnp.minimum(1.0, 1.0 / norm), update)

    def scanned(p: Arrays, features: Any, labels: Any, keys: Any) -> Arrays:
        def add(total: Arrays, one: Any) -> tuple[Arrays, None]:
            return jax.tree.map(jnp.add, total, clipped(p, *one)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), (features, labels, keys))[0]

    summed: Callable[..., Arrays] = scanned
    if library == "jax-privacy":
        from jax_privacy.clipping import clipped_fun  # pyright: ignore[reportMissingImports]

        summed = clipped_fun(
            moved, batch_argnums=(1, 2, 3), keep_batch_dim=False, microbatch_size=1
        )
    train = jax.jit(summed)
    keys = jax.random.split(jax.random.PRNGKey(0), users)
    return lambda: jax.block_until_ready(train(start, features, labels, keys))


def main() -> None:
    """Answer `Other.ask` of `engine.py`."""
    train: Callable[[], object] | None = None
    for line in sys.stdin:
        if line.strip() == "turn":
            assert train is not None
            begun = time.process_time()
            train()
            print(time.process_time() - begun, flush=True)
        else:
            train = make(*json.loads(line), sys.argv[1])
            print("ready" if train else "none", flush=True)


if __name__ == "__main__":
    main()
