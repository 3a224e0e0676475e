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

os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import workload

DENSE = {"mlp": ("1", "3", "5"), "cnn": ("7", "9")}


def parameters_of(model: str) -> dict[str, jax.Array]:
    """Those of the torch model, dense weights as (inputs, outputs), convolutions as (3, 3, in, out)."""
    arrays = {name: p.detach().numpy() for name, p in workload.build(model).named_parameters()}
    turned = {2: lambda a: a.T, 4: lambda a: a.transpose(2, 3, 1, 0), 1: lambda a: a}
    return {name: jnp.asarray(turned[array.ndim](array)) for name, array in arrays.items()}


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

    def loss(p, x, y):
        losses = -jnp.take_along_axis(jax.nn.log_softmax(outputs(model, p, x)), y[:, None], 1)
        return losses.mean()

    def update(start, x, y, key):
        order = jax.random.permutation(key, workload.EXAMPLES)
        p = start
        for rows in jnp.split(order, workload.EXAMPLES // workload.BATCH):
            gradient = jax.grad(loss)(p, x[rows], y[rows])
            p = jax.tree.map(lambda w, g: w - workload.LEARNING_RATE * g, p, gradient)
        moved = jax.tree.map(jnp.subtract, p, start)
        norm = jnp.sqrt(sum(jnp.sum(part * part) for part in jax.tree.leaves(moved)))
        return jax.tree.map(lambda part: part * jnp.minimum(1.0, workload.CLIP_NORM / norm), moved)

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
