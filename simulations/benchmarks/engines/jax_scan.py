"""The workload as an expert writes it in JAX: one jitted round that scans over users.

Needs an environment with jax and torch (for the data). Steps, clipping, Gaussian noise and the server's step
are in the compiled program; there are no messages, no record and no commit. Prints the seconds of each round
as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import lru_cache

os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
import workload

DENSE = {"logistic": ("1",), "lora": ("1",), "mlp": ("1", "3", "5"), "cnn": ("7", "9")}


def parameters_of(model: str) -> dict[str, jax.Array]:
    """Those of the torch model that are trained, dense weights as (inputs, outputs), convolutions as
    (3, 3, in, out)."""
    module = workload.build(model)
    arrays = {name: p.detach().numpy() for name, p in module.named_parameters() if p.requires_grad}
    turned = {2: lambda a: a.T, 4: lambda a: a.transpose(2, 3, 1, 0), 1: lambda a: a}
    return {name: jnp.asarray(turned[array.ndim](array)) for name, array in arrays.items()}


@lru_cache(maxsize=1)
def frozen_of(model: str) -> dict[str, np.ndarray]:
    """Weights and biases that are not trained, as `parameters_of`; constants of the compiled program."""
    named = workload.build(model).named_parameters()
    return {name: p.detach().numpy().T for name, p in named if not p.requires_grad}


def cross_entropy(model: str) -> Callable[[dict[str, jax.Array], jax.Array, jax.Array], jax.Array]:
    """The mean loss of a batch under parameters."""

    def loss(p: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        losses = -jnp.take_along_axis(jax.nn.log_softmax(outputs(model, p, x)), y[:, None], 1)
        return losses.mean()

    return loss


def update_clipped(start: dict[str, jax.Array], end: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The difference, of norm ζ at most."""
    moved = jax.tree.map(jnp.subtract, end, start)
    norm = jnp.sqrt(sum(jnp.sum(part * part) for part in jax.tree.leaves(moved)))
    return jax.tree.map(lambda part: part * jnp.minimum(1.0, workload.CLIP_NORM / norm), moved)


def outputs(model: str, p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Logits of a batch of images (batch, 28, 28, 1)."""
    if model == "cnn":
        for layer in ("0", "3"):
            x = jax.lax.conv_general_dilated(
                x, p[f"{layer}.weight"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            batch, height, width, channels = x.shape
            x = (x + p[f"{layer}.bias"]).reshape(batch, height // 2, 2, width // 2, 2, channels)
            x = jax.nn.relu(x.max((2, 4)))
    x = x.reshape(len(x), -1)
    if model == "lora":
        frozen = frozen_of(model)
        x = jax.nn.relu(x @ frozen["1.weight"] + frozen["1.bias"])
        whole = x @ frozen["3.base_layer.weight"] + frozen["3.base_layer.bias"]
        return whole + x @ p["3.lora_A.default.weight"] @ p["3.lora_B.default.weight"]
    *hidden, last = DENSE[model]
    for layer in hidden:
        x = jax.nn.relu(x @ p[f"{layer}.weight"] + p[f"{layer}.bias"])
    return x @ p[f"{last}.weight"] + p[f"{last}.bias"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, required=True)
    model = parser.parse_args().model
    examples, classes = workload.users_data()
    features = jnp.asarray(examples.permute(0, 2, 3, 1).numpy()).reshape(
        workload.USERS, workload.EXAMPLES, 28, 28, 1
    )
    labels = jnp.asarray(classes.numpy()).reshape(workload.USERS, workload.EXAMPLES)

    loss = cross_entropy(model)

    def update(start, x, y, key):
        order = jax.random.permutation(key, workload.EXAMPLES)
        p = start
        for rows in jnp.split(order, workload.EXAMPLES // workload.BATCH):
            gradient = jax.grad(loss)(p, x[rows], y[rows])
            p = jax.tree.map(lambda w, g: w - workload.LEARNING_RATE * g, p, gradient)
        return update_clipped(start, p)

    @jax.jit
    def round_of(p, features, labels, users, key):
        def add(total, one):
            user, own = one
            return jax.tree.map(jnp.add, total, update(p, features[user], labels[user], own)), None

        noise, *keys = jax.random.split(key, 1 + workload.COHORT)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, p), (users, jnp.stack(keys)))
        leaves, tree = jax.tree.flatten(total)
        scale = workload.NOISE_MULTIPLIER * workload.CLIP_NORM
        noised = [
            leaf + scale * jax.random.normal(own, leaf.shape)
            for leaf, own in zip(leaves, jax.random.split(noise, len(leaves)), strict=True)
        ]
        return jax.tree.map(lambda w, part: w + part / workload.COHORT, p, tree.unflatten(noised))

    p, seconds = parameters_of(model), []
    for t in range(workload.WARM_UP + workload.ROUNDS):
        users, key = jnp.asarray(list(workload.cohort(t))), jax.random.PRNGKey(t)
        begun = time.perf_counter()
        p = jax.block_until_ready(round_of(p, features, labels, users, key))
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
