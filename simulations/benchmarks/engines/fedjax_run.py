"""The workload in FedJAX: its loop over clients, jitted, with clipping, noise and step compiled as well.

Needs an environment with fedjax and torch (for the data). There are no messages, no record and no commit.
Prints the seconds of each round as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import fedjax  # pyright: ignore[reportMissingImports]
import jax  # pyright: ignore[reportMissingImports]
import workload
from jax_scan import cross_entropy, parameters_of, update_clipped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, required=True)
    model = parser.parse_args().model
    examples, classes = workload.users_data()
    features, labels = examples.permute(0, 2, 3, 1).numpy(), classes.numpy()
    clients = []
    for first in range(0, len(labels), workload.EXAMPLES):
        own = slice(first, first + workload.EXAMPLES)
        clients.append(fedjax.ClientDataset({"x": features[own], "y": labels[own]}))
    gradient = jax.grad(cross_entropy(model))

    def begin(shared, _own):
        return {"start": shared, "now": shared}

    def step(state, batch):
        moved = gradient(state["now"], batch["x"], batch["y"])
        now = jax.tree.map(lambda w, g: w - workload.LEARNING_RATE * g, state["now"], moved)
        return {**state, "now": now}

    def end(_shared, state):
        return update_clipped(state["start"], state["now"])

    train = fedjax.for_each_client(begin, step, end)

    @jax.jit
    def stepped(p, total, key):
        leaves, tree = jax.tree.flatten(total)
        scale = workload.NOISE_MULTIPLIER * workload.CLIP_NORM
        noised = [
            leaf + scale * jax.random.normal(own, leaf.shape)
            for leaf, own in zip(leaves, jax.random.split(key, len(leaves)), strict=True)
        ]
        return jax.tree.map(lambda w, part: w + part / workload.COHORT, p, tree.unflatten(noised))

    add = jax.jit(lambda total, one: jax.tree.map(jax.numpy.add, total, one))
    p, seconds = parameters_of(model), []
    for t in range(workload.WARM_UP + workload.ROUNDS):
        begun = time.perf_counter()
        batches = [
            (u, clients[u].shuffle_repeat_batch(batch_size=workload.BATCH, num_epochs=1, seed=t), None)
            for u in workload.cohort(t)
        ]
        total = None
        for _, one in train(p, batches):
            total = one if total is None else add(total, one)
        p = jax.block_until_ready(stepped(p, total, jax.random.PRNGKey(t)))
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
