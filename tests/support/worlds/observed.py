"""Neighbouring worlds: the whole command is run in both, and everything that leaves it is compared."""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.records import Ledger, load_state
from fedmf.runs import LEDGER, render_toml
from fedmf.training import METRICS
from support.traffic import SentMessage, watched_messages
from support.worlds.stage import Hostile, Stage
from support.worlds.tasks import LINEAR

#: A command line: arguments to exit code.
Command = Callable[[Sequence[str]], int]

_JUDGED: Final = "|".join(
    name.replace("_", "[_ ]") for name in ("loss", *(metric.name for metric in METRICS))
)
#: What is computed from the released models, or released beside them: it may differ, and noise covers it.
_NOISED: Final = re.compile(
    rf"\b({_JUDGED})(\s+|\": |=)(-?[\d.]+(e[+-]?\d+)?|nan|inf|null|NaN|Infinity)( %)?"
)
_CLOCK: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+\d\d:\d\d)?|\b\d\d:\d\d:\d\d\b")


@dataclass(frozen=True, eq=False)
class Leaving:
    """Everything that leaves one run of the command, clocks and what noise covers masked.

    Args:
        code: exit code.
        stdout: the screen, of a run and of its whole account.
        stderr: likewise.
        log: what the loggers got.
        files: names and modes in the run directory; what is in them stays with the operator.
        published: what ``fedmf account --public`` wrote, by name.
        traffic: the messages: round, kind, whom they name, bytes.
        asked: who was asked to train, round by round.
        models: θ_0, …, θ_n, the one thing that noise covers.
    """

    code: int
    stdout: str
    stderr: str
    log: str
    files: Mapping[str, str]
    published: Mapping[str, str]
    traffic: tuple[str, ...]
    asked: tuple[frozenset[str], ...]
    models: tuple[NDArray[np.float32], ...]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a comparison of two worlds found.

    Args:
        data: the data set.
        behaviour: of the user's data.
        outside: differences outside noised values, a line each.
        norm: ‖c‖/ζ of the user's clipped update in the hostile world, trained alone; nan if not needed.
        hostile: what left that world.
    """

    data: str
    behaviour: str
    outside: tuple[str, ...]
    norm: float
    hostile: Leaving


def observe(command: Command, stage: Stage, arguments: Sequence[str] = ()) -> Leaving:
    """Run the command on what is on stage, always in the same place, and publish.

    Args:
        command: such as `fedmf.cli.app.run`, in this process.
        stage: its run directory is replaced.
        arguments: further ones of ``fedmf simulate``.
    """
    config, run, public = (stage.place / name for name in ("config.toml", "run", "public"))
    for old in (run, public):
        shutil.rmtree(old, ignore_errors=True)
    config.write_text(render_toml(stage.run()), encoding="utf-8")
    out, err, sent = io.StringIO(), io.StringIO(), []
    with (
        _wide(),
        redirect_stdout(out),
        redirect_stderr(err),
        watched_messages(sent.append),
        _logged() as log,
    ):
        public.mkdir()
        code = _code(command, ["simulate", str(config), "--out", str(run), *arguments])
        published = _code(
            command, ["account", str(run), "--full", "--public", str(public / "statement.json")]
        )
    execution = stage.run().execution
    one_each = execution.messages == "per-user" and execution.users_per_message == 1
    return Leaving(
        code=code,
        stdout=masked(out.getvalue(), stage.place),
        stderr=masked(err.getvalue(), stage.place),
        log=masked(log.getvalue(), stage.place),
        files=_modes(run),
        published={"exit code": str(published), **_contents(public, stage.place)},
        traffic=tuple(_traffic(sent, one_each)),
        asked=asked_users(sent),
        models=tuple(_models(sent, run)),
    )


def _code(command: Command, arguments: Sequence[str]) -> int:
    try:
        return command(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1


@contextmanager
def _wide() -> Iterator[None]:
    """A screen so wide that no line breaks at another place because a noised number has another length."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "400"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


@contextmanager
def _logged() -> Iterator[io.StringIO]:
    """Everything logged, in one text."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    loggers = [logging.getLogger(), logging.getLogger("flwr")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield text
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def masked(text: str, place: Path) -> str:
    """Without clocks, values that noise covers, and the folder of the stage.

    >>> masked('"loss": 0.25, accuracy 31.2 %, 3 of 4 users at 20:34:55 in /a/run', Path("/a"))
    '"loss": NOISED, accuracy NOISED, 3 of 4 users at CLOCK in STAGE/run'
    """
    noised = _NOISED.sub(r"\1\2NOISED", text)
    return _CLOCK.sub("CLOCK", noised).replace(str(place), "STAGE")


def _modes(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        return {}
    paths = [folder, *sorted(folder.rglob("*"))]
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):04o}" for path in paths}


def _contents(folder: Path, place: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {
        str(file.relative_to(folder)): masked(file.read_bytes().decode("latin-1"), place) for file in files
    }


def _traffic(sent: Sequence[SentMessage], one_each: bool) -> Iterator[str]:
    """A line for each message to one user; whom else the same worker is asked for is no message to a user.

    How often nodes are asked whom they serve depends on how quickly they start, before any example is read.
    """
    if one_each:
        lines = [f"round {m.group} {m.kind} to {','.join(m.users)}: {m.size} bytes" for m in sent]
        yield from sorted(lines)
        return
    groups = sorted({(message.group, message.kind) for message in sent})
    for group, kind in groups:
        of_group = [message for message in sent if (message.group, message.kind) == (group, kind)]
        users = ",".join(sorted(user for message in of_group for user in message.users))
        sizes = [message.size[0] for message in of_group]
        sizes = sizes if users else sorted({*sizes})
        yield f"round {group} {kind} to {users}: {sizes} bytes of arrays"


def asked_users(sent: Sequence[SentMessage]) -> tuple[frozenset[str], ...]:
    """Who was asked to train, round by round."""
    rounds: dict[int, frozenset[str]] = {}
    for message in sent:
        if message.kind == "train":
            t = int(message.group)
            rounds[t] = rounds.get(t, frozenset()) | frozenset(message.users)
    return tuple(rounds[t] for t in sorted(rounds))


def _models(sent: Sequence[SentMessage], run: Path) -> Iterator[NDArray[np.float32]]:
    """The model that each round's messages carry, and the last."""
    by_round = {
        int(message.group): message.parameters
        for message in sent
        if message.kind == "train" and message.parameters is not None
    }
    yield from (by_round[t].float().numpy() for t in sorted(by_round))
    with Ledger.open(run / LEDGER, read_only=True) as ledger:
        committed = ledger.checkpoint()
        if committed is not None:
            yield load_state(ledger, *committed[1:])[0].float().numpy()


def differences(benign: Leaving, hostile: Leaving) -> tuple[str, ...]:
    """What leaves differently, but for the values of models: a line each."""
    found: list[str] = []
    for field in fields(Leaving):
        one, other = getattr(benign, field.name), getattr(hostile, field.name)
        if field.name == "models":
            one, other = [m.shape for m in one], [m.shape for m in other]
        if one != other:
            found.append(f"{field.name}: {_first(one, other)}")
    return tuple(found)


def _first(one: Any, other: Any) -> str:
    """Where two values begin to differ."""
    if isinstance(one, Mapping):
        names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        return f"{names[0]}: {_first(one.get(names[0]), other.get(names[0]))}"
    if isinstance(one, str) and isinstance(other, str):
        return _first(one.splitlines(), other.splitlines())
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        for a, b in zip(one, other, strict=False):
            if a != b:
                return f"{a!r} | {b!r}"
        longer = one if len(one) > len(other) else other
        alone = longer[min(len(one), len(other))]
        return f"{len(one)} | {len(other)} lines or values; first only on one side {alone!r}"
    return f"{one!r} | {other!r}"


def compare(
    command: Command, stage: Stage, hostile: Hostile, benign: Leaving, arguments: Sequence[str] = ()
) -> Verdict:
    """Run the world in which a user misbehaves and compare it with the benign one.

    The models may differ by that user's contribution only: they are equal up to the user's first round, and
    m·(θ' − θ) of that round is what the user's clipped update, trained alone, is in the hostile world less
    what it is in the benign one. Where users' updates do not depend on the model the same holds of every
    round's increments.

    Args:
        command: see `observe`.
        stage: where; its server's optimizer takes steps of length one without momentum. The benign world may
            have been on another one, of the same data and settings and an equally long name.
        hostile: who misbehaves how.
        benign: what leaves the world in which nobody does.
        arguments: as for `observe`.
    """
    rounds = _rounds_of_one_model(stage, hostile[0], benign)
    stage.act(hostile)
    other = observe(command, stage, arguments)
    outside = list(differences(benign, other))
    theirs = {} if outside else {t: stage.contribution(other.models[t], hostile[0], t) for t in rounds}
    stage.act(None)
    mine = {} if outside else {t: stage.contribution(benign.models[t], hostile[0], t) for t in rounds}
    zeta = stage.run().privacy.clip_norm
    if not outside:
        outside += _models_differ(stage, benign, other, {t: theirs[t] - mine[t] for t in rounds})
    norm = max((float(np.linalg.norm(one)) / zeta for one in theirs.values()), default=float("nan"))
    return Verdict(stage.data, hostile[1], tuple(outside), norm, other)


def _rounds_of_one_model(stage: Stage, user: int, benign: Leaving) -> list[int]:
    """The rounds in which a user is asked while both worlds' updates start from the same model.

    That is the first alone, unless no update depends on the model.
    """
    stage.act(None)
    name = str(stage.run().task_source.build().dataset.user_ids[user])
    rounds = [t for t, users in enumerate(benign.asked) if name in users]
    return rounds if stage.data == LINEAR else rounds[:1]


def _models_differ(
    stage: Stage, benign: Leaving, other: Leaving, expected: Mapping[int, NDArray[np.float64]]
) -> list[str]:
    """A line about the first model whose increments differ by anything but what one user contributed."""
    m, zeta = stage.run().cohorts.size, stage.run().privacy.clip_norm
    models = (*benign.models, *other.models)
    size = max(float(np.abs(model).max(initial=0.0)) for model in models)
    slack = 1e-6 * m * (1 + size) * np.sqrt(models[0].size)
    gaps = [b.astype(np.float64) - a for a, b in zip(benign.models, other.models, strict=True)]
    last = len(gaps) - 1 if stage.data == LINEAR else max(expected, default=-1) + 1
    for t in range(last):
        rest = m * (gaps[t + 1] - gaps[t]) - expected.get(t, 0.0)
        if np.linalg.norm(rest) > slack:
            moved = f"others moved by {np.linalg.norm(rest) / zeta:.3g} clip norms"
            return [f"model after round {t + 1}: {moved}"]
        if np.linalg.norm(expected.get(t, np.zeros(1))) > 2 * zeta + slack:
            return [f"model after round {t + 1}: the hostile user moved it by more than two clip norms"]
    return []
