"""Every key of a configuration with values inside and outside its range, and what else it needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedmf.data import DATASETS
from fedmf.mechanisms.registry import names
from fedmf.models import MODELS
from fedmf.runs import NAMED_TASKS
from fedmf.runs.tables import Key, keys

KEYS: dict[str, Key] = {key.dotted: key for key in keys()}

#: What a private run must declare about rows.
_DECLARED = {"data.class-names": "0..9", "data.input-shape": "64", "data.roster": "users.txt"} | {
    "data.user-column": "who"
}
#: What a kind needs beside its name.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("own", "None"): {"own.function": "tasks:norms"},
    ("data", "table"): {"data.path": "rows.csv", "data.feature-columns": "a,b", **_DECLARED},
    ("data", "hub"): {"data.path": "cifar10", **_DECLARED},
    ("data", "on-nodes"): {"data.path": "rows.csv", "data.feature-columns": "a,b", **_DECLARED},
    ("task", "function"): {"task.function": "tasks:make"},
}
#: With a column of texts, other features are left out.
_TEXTS_ALONE = {"data.feature-columns": "", "data.input-shape": ""}
#: What a value of a key needs.
COMPANIONS: dict[tuple[str, Any], dict[str, Any]] = {
    ("data.partition", "natural"): {"data.kind": "table"},
    ("data.tag-column", "tags"): {"data.text-column": "body", "data.class-names": "D,N", **_TEXTS_ALONE},
    **{("data.text-column", name): _TEXTS_ALONE for name in ("body", "größe")},
    **{("data.label-columns", names): {"data.class-names": ""} for names in ("y", "y,größe")},
    ("data.vocabulary", "bpe"): {"data.vocabulary-path": "public.txt"},
    ("data.vocabulary", "words"): {"data.vocabulary-path": "public.txt"},
    ("model.output", "tied"): {"model.dense-units": 32},
    ("privacy.unit", "example"): {"data.partition": "each-example"},
    ("privacy.amplified", True): {"cohorts.kind": "balls-in-bins"},
    ("server.epsilon", 0.0): {"server.kind": "adam"},
    ("server.epsilon", 1e9): {"server.kind": "adam"},
    ("server.relative-epsilon", 0.0): {"server.epsilon": 0.5},
    ("execution.min-replies", 4): {"execution.messages": "per-user"},
}

#: Numbers that a key takes, and numbers that it refuses (what stands for "not set" is neither).
RANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "task.users": ([360, 10**6], [0, -2, 2**31]),
    "task.task-seed": ([0, 10**30], []),
    "data.users": ([360, 10**6], [0, -2, 2**31, 10**30]),
    "data.size-exponent": ([1.001, 50.0], [1.0, 0.0, -2.0]),
    "data.test-fraction": ([0.01, 0.99], [0.0, 1.0, -0.1]),
    "data.seed": ([0, 2**63 - 1], [-2, 2**63]),
    "data.dirichlet-alpha": ([1e-9, 1e9], [0.0, -1.0]),
    "data.shards-per-user": ([1, 5], [0, -2, 2**31]),
    "data.examples-per-user": ([1, 10**6], [0, -2, 2**31]),
    "data.features": ([1, 10**6], [0, -2, 2**31]),
    "data.classes": ([2, 10**6], [1, 0, -2, 2**31]),
    "data.clusters": ([1, 1000], [0, -2, 1001]),
    "data.alpha": ([0.0, 1e6], [-0.1]),
    "data.beta": ([0.0, 1e6], [-0.1]),
    "data.length": ([1, 10**6], [0, -2, 2**31]),
    "data.vocabulary-size": ([258, 10**6], [257, -2, 2**31]),
    "data.most-sequences": ([1, 10**6], [0, -2, 2**31]),
    "data.most-test-sequences": ([1, 10**6], [0, -2, 2**31]),
    "model.dense-units": ([0, 10**6], [-2, 2**31]),
    "model.groups": ([1, 64], [0, -2, 3, 128]),
    "model.embedding": ([1, 10**6], [0, -2, 2**31]),
    "model.hidden": ([1, 10**6], [0, -2, 2**31]),
    "model.layers": ([1, 64], [0, -2, 65]),
    "model.width": ([4, 128], [0, -2, 63, 2**31]),
    "model.heads": ([1, 4, 64], [0, -2, 3]),
    "model.feed-forward": ([1, 10**6], [0, -2, 2**31]),
    "model.longest": ([1, 512], [0, -2, 2**31]),
    "model.seed": ([0, 2**63 - 1], [-2, 2**63]),
    "cohorts.rounds": ([1, 10**6], [0, -2, 2**31]),
    "cohorts.users-per-round": ([1, 360], [0, -2, 361, 2**31]),
    "cohorts.min-separation": ([1, 10], [0, -2, 11, 241]),
    "cohorts.max-participations": ([24], [0, -2, 23, 25, 10**30]),
    "cohorts.seed": ([0, 2**63 - 1], [-2, 2**63]),
    "own.bound": ([1e-9, 1e9], [0.0, -0.3]),
    "own.share": ([1e-6, 0.999], [0.0, 1.0]),
    "privacy.clip-norm": ([1e-9, 1e9], [0.0, -0.3]),
    "privacy.delta": ([1e-300, 0.99], [0.0, 1.0, -1e-5]),
    "privacy.noise-seed": ([0, 10**30], [-2]),
    "privacy.epsilon": ([1e-3, 1e3], [0.0, -1.0]),
    "mechanism.bands": ([1, 240], [0, -2, 241, 10**30]),
    # Which parameters suit a mechanism and n is found when it is built.
    "mechanism.alpha": ([0.0, 0.5], [math.inf]),
    "mechanism.gamma": ([0.5, 1.0], [math.inf]),
    "mechanism.lambda": ([0.5, 0.99], [math.inf]),
    "mechanism.nu": ([0.25, 1.0], [math.inf]),
    "mechanism.c": ([-0.5, 1.0], [math.inf]),
    "mechanism.full": ([0, 1], [-2, 2]),
    "mechanism.arity": ([2, 10], [0, 1, -2]),
    "mechanism.buffers": ([1, 10], [0, -2, 11]),
    "mechanism.smoothness": ([1e-9, 1e9], [0.0, -1.0]),
    "mechanism.eta": ([1e-9, 1e9], [0.0, -1.0]),
    "mechanism.mu": ([1e-9, 1e9], [0.0, -1.0]),
    "mechanism.eigenvalues": ([1, 4096], [0, -2, 4097]),
    "mechanism.lags": ([0, 32], [-2, 33]),
    "mechanism.variance": ([0.0, 1e9], [math.inf]),
    "mechanism.stamps": ([1, 10], [0, -2]),
    "mechanism.taper": ([0, 10], [-2]),
    "mechanism.second-moment-importance": ([0.0, 1e9], [-1.0]),
    "server.learning-rate": ([1e-9, 1e9], [0.0, -0.3]),
    "server.warmup": ([0, 239], [-2, 240]),
    "server.weight-decay": ([0.0, 9.9], [-0.1, 10.1]),
    "server.update-clip": ([1e-9, 1e9], [0.0, -1.0]),
    "server.momentum": ([0.0, 0.999], [1.0, -0.1]),
    "server.beta1": ([0.0, 0.999], [1.0, -0.1]),
    "server.beta2": ([0.0, 0.999], [1.0, -0.1]),
    "server.epsilon": ([0.0, 1e9], [-1e-9]),
    "server.relative-epsilon": ([0.0, 1e9], [-1e-9]),
    "client.epochs": ([1, 100], [0, -2, 2**31]),
    "client.batch-size": ([1, 10**6], [0, -2, 2**31]),
    "client.learning-rate": ([1e-9, 1e9], [0.0, -0.3]),
    "client.momentum": ([0.0, 0.999], [1.0, -0.1]),
    "client.proximal": ([0.0, 1e9], [-0.1]),
    "client.micro-batch": ([0, 10**6], [-2, 2**31]),
    "client.seed": ([0, 2**63 - 1], [-2, 2**63]),
    "clipping.quantile": ([0.01, 0.99], [0.0, 1.0, -0.1]),
    "clipping.learning-rate": ([1e-9, 1e9], [0.0, -0.3]),
    "clipping.rounds-per-update": ([1, 10**6], [0, -2, 2**31]),
    "clipping.share": ([1e-3, 0.9], [0.0, 1.0, -0.1]),
    "execution.users-per-message": ([1, 12], [0, -5]),
    "execution.workers": ([1, 100], [0, -2, 2**31]),
    "execution.worker-gpus": ([0.0, 0.5, 2.0], [-0.1, math.inf]),
    "execution.round-timeout": ([0.1, 1e6], [0.0, -1.0]),
    "execution.handshake-timeout": ([0.1, 1e6], [0.0, -1.0, math.inf]),
    "execution.min-replies": ([0, 4], [-2, 2**31]),
    "execution.evaluate-every": ([1, 10**6], [0, -2, 2**31]),
    "execution.checkpoint-every": ([1, 10**6], [0, -2, 2**31]),
}

#: Texts that a key takes; choices are in `CHOICES`.
TEXTS: dict[str, list[str]] = {
    "own.function": ["tasks:norms", "a.b_1:C"],
    "own.entries": ["value", "first,last_1"],
    "own.meaning": ["how far users move", 'a "b" é'],
    "task.function": ["tasks:make", "a.b_1:C"],
    "task.options": ["x", 'a "b"\n\\c é'],
    "data.schema": ["schema.toml", "größe.toml"],
    "data.schema-digest": ["0123456789abcdef"],
    "data.input-shape": ["64", "1,8,8"],
    "data.path": ["rows.csv", 'a "b"/é'],
    "data.feature-columns": ["a,b", "none", "größe"],
    "data.label-column": ["y", "a,b"],
    "data.text-column": ["body", "größe"],
    "data.tag-column": ["tags"],
    "data.vocabulary-path": ["public.txt", 'a "b"/é.json'],
    "data.label-columns": ["y", "y,größe"],
    "data.user-column": ["who"],
    "data.class-names": ["cat,dog", "0..61", "größe,-1"],
    "model.initial": ["base.safetensors", "a b/é.pt"],
    "data.roster": ["users.txt", 'a "b"/é'],
    "data.test-path": ["test.csv", 'a "b"/é'],
    "model.hidden-units": ["8,4", "64", "none"],
    "privacy.user-namespace": ["hospital 3"],
    "mechanism.objective": ["max", "last", "weights:1.0,2.0"],
    "mechanism.workload": ["auto", "window:3", "prefix*cosine"],
    "mechanism.second-workload": ["prefix", "exponential:0.5"],
    "execution.ray-address": ["auto", "ray://head:10001"],
    "execution.enrolment": ["/etc/fedmf/enrolled", 'a "b"/é'],
    "execution.output-dir": ["/tmp/x", 'a "b"\n\\c é'],
}
_MECHANISMS = names()
#: Texts that a key chooses from.
CHOICES: dict[str, list[str]] = {
    "task.kind": [*NAMED_TASKS, "function"],
    "data.kind": [*DATASETS],
    "data.partition": ["iid", "dirichlet", "dirichlet-sizes", "power-law", "shards", "each-example"],
    "data.vocabulary": ["bytes", "words", "bpe"],
    "data.hold-out": ["auto", "examples", "users"],
    "model.kind": [*MODELS],
    "model.activation": ["tanh", "relu", "gelu"],
    "model.stem": ["cifar", "imagenet"],
    "model.output": ["own", "tied"],
    "model.pooling": ["none", "last", "mean"],
    "model.positions": ["sinusoidal", "learnt"],
    "model.norms": ["after", "before"],
    "cohorts.kind": ["cyclic", "random", "cyclic-poisson", "balls-in-bins", "b-min-sep", "available"],
    "privacy.kind": ["user-level", "none"],
    "privacy.unit": ["user", "example"],
    "privacy.adjacency": ["zero-out", "replace-one"],
    "mechanism.kind": _MECHANISMS,
    "server.kind": ["sgd", "fedadagrad", "fedyogi", "adam", "adam-debiased", "jme-adam"],
    "server.schedule": ["constant", "linear", "cosine"],
    "server.blocks": ["coordinate", "channel", "tensor", "model"],
    "server.second-form": ["per-user", "squared-mean"],
    "client.engine": ["auto", "vectorised", "loop"],
    "client.precision": ["float32", "bfloat16"],
    "clipping.kind": ["fixed", "quantile"],
    "execution.messages": ["slice", "per-user"],
}


def needed(name: str, value: Any = None) -> dict[str, Any]:
    """Other keys with which a key can take a value: the first kind that has it, and what that kind needs.

    Args:
        name: the dotted key.
        value: what it is set to.
    """
    table, _, key = name.partition(".")
    kinds = [kind for kind in KEYS[name].defaults if (f"{table}.kind" in KEYS and kind)]
    own = {f"{table}.kind": kinds[0]} if kinds and kinds[0] in CHOICES[f"{table}.kind"] else {}
    own |= COMPANIONS.get((name, value), {})
    kind = value if key == "kind" else own.get(f"{table}.kind")
    return {**NEEDED.get((table, str(kind)), {}), **own}


def by_table(names: Iterable[str]) -> dict[str, list[str]]:
    """Dotted keys by their table: a test goes over one table, and what fails names the key."""
    tables: dict[str, list[str]] = {}
    for name in names:
        tables.setdefault(name.partition(".")[0], []).append(name)
    return tables


def accepted(name: str) -> list[Any]:
    """Values that a key takes."""
    if KEYS[name].type is bool:
        return [False, True]
    if KEYS[name].type is str:
        return [*TEXTS.get(name, []), *CHOICES.get(name, [])]
    return RANGES[name][0]
