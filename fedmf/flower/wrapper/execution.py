"""What of `Execution` a wrapped app reads; the rest it refuses, so that no record says what was not done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from fedmf.errors import ConfigError
from fedmf.runs import Execution

#: How a wrapped app is carried out unless something else is asked for.
DEFAULT: Final = Execution(messages="per-user", users_per_message=1)
#: Fields that change what `CorrelatedNoise` does.
READ: Final = frozenset(
    {"messages", "handshake_timeout", "min_replies", "grace", "refusals", "silent_retries"}
)
_CLIENTS: Final = "What a user's training may cost is decided in the client app"
_FLOWER: Final = "Flower's own simulation or deployment decides it"
#: Fields that it does not read, with what decides instead.
UNREAD: Final[Mapping[str, str]] = {
    "users_per_message": "A node is one user, so a message asks for one",
    "workers": _FLOWER,
    "worker_cpus": _FLOWER,
    "worker_gpus": _FLOWER,
    "ray_address": _FLOWER,
    "round_timeout": "Give start its timeout",
    "enrolment": "Give identity=EnrolledUsers(file)",
    "user_examples": _CLIENTS,
    "user_steps": _CLIENTS,
    "user_megabytes": _CLIENTS,
    "isolation": _CLIENTS,
    "user_seconds": _CLIENTS,
    "evaluate_every": "evaluate_fn is called after every round; private_evaluation has its own every",
    "checkpoint_every": "Every round is kept",
    "output_dir": "Give run_dir",
    "resume": "A run that is in run_dir is continued",
    "restored_from_backup": "Only runs of fedmf's own server go on from a backup",
}


def performed(execution: Execution) -> Execution:
    """The execution that is carried out and recorded: one message a user.

    Raises:
        ConfigError: a field that nothing reads says something else than what is done; all of them are named.
    """
    if execution.messages != "per-user":
        raise ConfigError(f"execution must have messages 'per-user'; got {execution.messages!r}.")
    given = {field.name: getattr(execution, field.name) for field in dataclasses.fields(execution)}
    left_out = Execution()
    refused = [
        name
        for name, value in given.items()
        if name not in READ and value not in (getattr(left_out, name), getattr(DEFAULT, name))
    ]
    if refused:
        why = dict.fromkeys(UNREAD.get(name, "Nothing reads it") for name in refused)
        raise ConfigError(
            f"execution must leave out {', '.join(refused)}, which CorrelatedNoise does not read; got "
            f"{', '.join(repr(given[name]) for name in refused)}. {'. '.join(why)}."
        )
    return dataclasses.replace(execution, users_per_message=1)


def as_performed(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded run with what its execution did: earlier versions wrote down fields that nothing read."""
    done = {name: value for name, value in DEFAULT.to_dict().items() if name not in READ}
    return {**recorded, "execution": {**recorded["execution"], **done}}
