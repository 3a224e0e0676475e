"""What of a statement's words follows from its evidence, and what is its operator's word alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fedmf.errors import LedgerError
from fedmf.parts import OWN_STREAMS
from fedmf.statements import RunHeader

_SOFTWARE: Final = re.compile(r"fedmf \d+(\.\d+)+([.+-]?[a-z0-9]+)*", re.ASCII)
#: What every source of a task declares: how many users there are, and what their ids are.
_COUNTS, _IDS = ("users", "examples"), ("user ids", "example ids")
#: Of whatever data: a file that training starts from, and what the model holds beside what is trained.
_OF_MODELS: Final = ("initial parameters", "frozen parameters and buffers")


def check_words(header: RunHeader, statement: Mapping[str, Any]) -> None:
    """See that words which follow from the evidence are those that follow.

    Raises:
        LedgerError: one does not.
    """
    for name, said in (("stated_by", statement["stated_by"]), ("software", header.software)):
        if not (isinstance(said, str) and _SOFTWARE.fullmatch(said)):
            raise LedgerError(f"{name} must be fedmf and a version; got {said!r}.")
    names = Counter(entry["name"] for entry in header.public_inputs)
    if twice := [name for name, count in names.items() if count > 1]:
        raise LedgerError(f"public_inputs must have each name once; got {twice[0]!r} several times.")
    counts = [entry["value"] for entry in header.public_inputs if entry["name"] in _COUNTS]
    if counts != [str(header.plan.users)]:
        raise LedgerError(
            f"public_inputs must name how many users there are, {header.plan.users}; got {counts}."
        )
    if sum(names[name] for name in _IDS) != 1:
        raise LedgerError(f"public_inputs must name what user ids are; got {sorted(names)}.")
    of_cohorts = [
        dict(zip(("name", "value", "source"), entry, strict=True))
        for entry in header.plan.cohorts.public_inputs()
    ]
    given = [dict(entry) for entry in header.public_inputs]
    if missing := [entry for entry in of_cohorts if entry not in given]:
        raise LedgerError(f"public_inputs must hold what cohorts were planned with, {missing[0]}.")
    if not of_cohorts and "check-ins planned with" in names:
        raise LedgerError("public_inputs must name no check-ins: the cohorts are planned without.")
    record, signed = statement.get("record"), statement.get("signature") is not None
    if signed and (record is None) != header.key_public:
        raise LedgerError(
            f"key_public must be told by whether digests of the record are signed, {record is None}; got "
            f"{header.key_public}."
        )


def check_names(header: RunHeader) -> None:
    """See that the public inputs of a run are those that its task has, by their names.

    Args:
        header: whole, of a run directory; a task that is not named by a configuration vouches for its own.

    Raises:
        LedgerError: one is missing, or one more is there.
    """
    from fedmf.runs.named_tasks import NAMED_TASKS, NamedTask, task_of  # which load torch

    if header.run["task"]["kind"] not in NAMED_TASKS:
        return
    task = task_of(header.run["task"], None)
    assert isinstance(task, NamedTask)
    due = {entry.name for entry in task.data.public_inputs()}
    due |= {name for name, *_ in header.plan.cohorts.public_inputs()}
    given = {entry["name"] for entry in header.public_inputs}
    if wrong := sorted(due ^ (given - {*_OF_MODELS})):
        raise LedgerError(f"public_inputs of the run must be named {sorted(due)}; {wrong[0]!r} differs.")


def operators_words(header: RunHeader, statement: Mapping[str, Any], seen: bool) -> Iterator[str]:
    """Each sentence of a statement that nothing in it shows.

    Args:
        header: in it.
        statement: published.
        seen: whether the run directory was looked at.
    """
    if not seen:
        yield f"that {statement['rounds_released']} rounds were released"
        for name, own in OWN_STREAMS.items():
            if statement[name] is not None:
                yield f"that {statement[name][f'{own.plural}_released']} {own.plural} were released"
        yield f"that what was lost with backups is {statement['rounds_lost'] or 'nothing'}"
    yield f"that {header.software} began the run and {statement['stated_by']} made the statement"
    for entry in header.public_inputs:
        if entry["name"] in _COUNTS or entry["name"] == "check-ins planned with":
            continue
        yield f"public input {entry['name']}: {entry['value']} ({entry['source']})"
    if "central test part" in header.not_private:
        yield "that the examples of the central test part belong to users that are trained on"
    else:
        yield "that no example of the central test part belongs to a user that is trained on"
    if header.plan.privacy.user_namespace:
        yield f"that user ids are ids of {header.plan.privacy.user_namespace!r}"
    if header.plan.noise_multiplier > 0 and not header.key_public:
        yield "that the noise key is secret and random: no small public seed makes it"
