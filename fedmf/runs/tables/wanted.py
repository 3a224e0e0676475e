"""Configuration keys by what one wants, for docs/configuration.md: a name that is no key is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fedmf.runs.tables.value_table import Key

#: The keys that most runs set, in the order in which they are decided, and the question that each answers.
FIRST: Final = {
    "privacy.epsilon": "How strict is the promise to each user? Smaller is stricter",
    "privacy.delta": "With which probability may it fail? Well below one over the number of users",
    "privacy.clip-norm": "How long may one user's update be? About the median length on public data",
    "cohorts.rounds": "How many rounds are there? This is the horizon; it cannot grow",
    "cohorts.size": "How many users are asked in a round? More of them is what buys accuracy",
    "mechanism.kind": "How is the noise correlated? `identity` is independent noise",
    "data.kind": "Where do examples come from?",
    "data.path": "In which file or folder are they?",
    "data.users": "How many users are there?",
    "data.user-column": "Which column says whose a row is?",
    "data.roster": "Which file lists all users?",
    "data.contract": "Which file says what columns may hold?",
    "data.partition": "Who owns which examples? `natural` for people's own rows",
    "model.kind": "Which model?",
    "optimizer.learning-rate": "How far does the server step?",
    "local.learning-rate": "How far does a user step?",
    "local.epochs": "How often does a user go through its examples in a round?",
    "local.batch-size": "How many examples are in a user's step?",
    "execution.evaluate-every": "After how many rounds is the model evaluated?",
    "execution.output-dir": "Where is the run kept?",
}

#: What one may want beyond these, and the keys that decide it.
WANTED: Final = {
    "a claim of secret cohorts (amplification)": "cohorts.kind privacy.amplified",
    "single examples protected instead of users": "privacy.kind data.partition",
    "a stop before anybody has spent more than allowed": "privacy.max-epsilon privacy.user-budgets",
    "the other adjacency": "privacy.adjacency",
    "noise that can be repeated, in a simulation": "privacy.noise-seed",
    "other seeds of data, model, cohorts, batches": "data.seed model.seed cohorts.seed local.seed",
    "an adaptive clip norm": "clipping.kind clipping.quantile clipping.unit-steps",
    "less memory for noise": "mechanism.bands mechanism.buffers mechanism.storage-dtype",
    "participation that is limited otherwise": "cohorts.min-separation cohorts.max-participations",
    "devices that come when they can": "cohorts.kind cohorts.trace cohorts.rounds-per-day",
    "another server optimizer": "optimizer.kind optimizer.momentum optimizer.schedule optimizer.warmup",
    "users that own very unequal data, made up": "data.partition data.dirichlet-alpha data.size-exponent",
    "rows of a table without a contract": (
        "data.feature-columns data.label-column data.class-names data.input-shape"
    ),
    "another task than classes": "task.kind task.function data.label-columns data.text-column",
    "a model to start from": "model.initial",
    "FedProx or momentum on clients": "local.proximal local.momentum",
    "less memory for training": "local.micro-batch local.precision execution.checkpoint-every",
    "more processes, GPUs, machines": "execution.workers execution.worker-gpus execution.ray-address",
    "accuracy on users' own examples": "evaluation.kind evaluation.share evaluation.every",
    "counts of contributions with noise": "health.share health.rounds-per-release",
    "a statistic of one's own": "own.function own.bound own.share",
    "a run that audits itself": "canaries.count",
    "deployment on nodes": "execution.messages execution.enrolment execution.round-timeout data.test-path",
    "limits on what one user may cost": (
        "execution.user-examples execution.user-steps execution.user-megabytes execution.isolation "
        "execution.user-seconds"
    ),
    "replies that are not waited for": "execution.min-replies execution.grace execution.refusals",
    "a stopped run continued under `flwr run`": "execution.resume",
}


def keys_by_want(keys: Mapping[str, Key], defaults: Mapping[str, str]) -> Iterator[str]:
    """Two tables in Markdown: the keys to begin with, then keys by purpose.

    Args:
        keys: every key by its whole name, ``table.key``.
        defaults: what stands in the column "default" of its table.
    """
    yield f"## The {len(FIRST)} keys to begin with"
    yield ""
    yield "| key | default | the question |"
    yield "|---|---|---|"
    for name, question in FIRST.items():
        yield f"| {_linked(name, keys)} | {defaults[name]} | {question}. |".replace("?. |", "? |")
    yield ""
    yield "## Keys by what you want"
    yield ""
    yield "| you want | keys |"
    yield "|---|---|"
    for want, names in WANTED.items():
        yield f"| {want} | {', '.join(_linked(name, keys) for name in names.split())} |"


def _linked(name: str, keys: Mapping[str, Key]) -> str:
    return f"[`{name}`](#{keys[name].table})"
