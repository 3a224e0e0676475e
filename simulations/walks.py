"""Walks through the house: how many functions, and how many doors, one thing passes.

    python simulations/walks.py                            # this tree
    python simulations/walks.py --tree ../old-checkout     # another one, beside this

Counted by `sys.setprofile`, on runs and streams of the measured tree's own test support:

* a pushed row: what `PrivateStream.push` calls for the tenth row of a stream;
* a configuration key: of what `fedmf simulate --set` calls until the key's value is used, the functions that
  are handed it, or something that holds it within three steps, each once;
* a reply: what the server calls from the moment a grid hands a reply over to the moment when it asks for the
  next: fedmf's own strategy (a row a user), and `CorrelatedNoise` around FedAvg.

A call is one of a function of the package; comprehensions and what a generator does when it goes on are none.
A change of room is a call from code of one room into code of another; a room is the first folder or module
below the package. C code and other packages are passed through.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: The key that is followed, a value that nothing else has, and the functions that use it.
KEY, VALUE, USED_BY = "execution.handshake-timeout", 43.210987, ".gather"
#: How far is looked for a value in what a function is handed, and at how many things.
_STEPS, _MOST = 3, 200
#: So many replies are not followed: what is made once is made by then.
FIRST: Final = 8
#: Code that has no name of its own.
_NAMELESS: Final = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<module>")


class Walk:
    """Calls of the package's functions while it is followed.

    Args:
        package: folder of the package.
        until: where the walk ends, by how the qualified name of a function ends; never by default.
        handed: count functions alone that are handed this value; by default all.
    """

    def __init__(self, package: Path, until: str = "", handed: float | None = None) -> None:
        self._package, self._until, self._handed = f"{package}{os.sep}", until, handed
        self._rooms: dict[CodeType, str] = {}
        self.calls, self.doors, self.functions, self.rooms = 0, 0, set[CodeType](), set[str]()

    def _room(self, code: CodeType) -> str:
        """Empty for code that is not the package's."""
        if code not in self._rooms:
            inside = code.co_filename.startswith(self._package)
            first = code.co_filename.removeprefix(self._package).split(os.sep)[0].removesuffix(".py")
            self._rooms[code] = first if inside else ""
        return self._rooms[code]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not self._room(code) or code.co_name in _NAMELESS:
            return
        if code.co_flags & 0x20 and frame.f_lasti > 4:  # a generator that goes on
            return
        if self._handed is not None and not self._is_handed(frame):
            return
        self.calls += 1
        self.functions.add(code)
        self.rooms.add(self._room(code))
        caller = frame.f_back
        while caller is not None and not self._room(caller.f_code):
            caller = caller.f_back
        self.doors += caller is not None and self._room(caller.f_code) != self._room(code)
        if self._until and code.co_qualname.endswith(self._until):
            sys.setprofile(None)

    def _is_handed(self, frame: FrameType) -> bool:
        if frame.f_code in self.functions:
            return True
        looked, seen = [(value, 0) for value in frame.f_locals.values()], set[int]()
        while looked and len(seen) < _MOST:
            value, steps = looked.pop(0)
            if (isinstance(value, str) and str(self._handed) in value) or value is self._handed:
                return True
            if isinstance(value, float) and value == self._handed:
                return True
            if id(value) in seen or steps == _STEPS:
                continue
            seen.add(id(value))
            inner: list[Any] = []
            if isinstance(value, dict):
                inner = list(value.values())
            elif isinstance(value, list | tuple):
                inner = list(value)
            elif type(value).__module__.startswith("fedmf"):
                inner = list(getattr(value, "__dict__", {}).values())
            looked += [(one, steps + 1) for one in inner[:_MOST]]
        return False

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While open, calls of this thread are counted."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def start(self) -> None:
        """Count from here on."""
        sys.setprofile(self._note)

    def stop(self) -> None:
        """Count no more."""
        sys.setprofile(None)

    def row(self, per: int = 1) -> dict[str, float]:
        """What was counted, of one among so many."""
        return {
            "calls": round(self.calls / per, 1),
            "changes of room": round(self.doors / per, 1),
            "functions": len(self.functions),
            "rooms": len(self.rooms),
        }


def pushed_row(package: Path, folder: Path) -> dict[str, float]:
    """The tenth row of a stream of two numbers a row."""
    import fedmf

    walk = Walk(package)
    with fedmf.PrivateStream(
        folder / "stream", epsilon=8.0, delta=1e-5, norm_bound=1.0, dimension=2, rounds=20, seed=7
    ) as stream:
        for t in range(9):
            stream.push([0.1, 0.2], user=f"u{t}")
        with walk.followed():
            stream.push([0.1, 0.2], user="u9")
    return walk.row()


def configuration_key(package: Path, folder: Path) -> dict[str, float]:
    """From the command line to the value's use."""
    import fedmf.cli.app as app

    (folder / "run.toml").write_text("[data]\nkind = 'synthetic'\n")
    small = ["data.users=24", "cohorts.rounds=4", "cohorts.size=4", "mechanism.kind=identity"]
    sets = [part for key in (*small, f"{KEY}={VALUE}") for part in ("--set", key)]
    command = ["simulate", str(folder / "run.toml"), *sets, "--out", str(folder / "run")]
    walk = Walk(package, USED_BY, VALUE)
    with walk.followed():
        app.run(command)
    return {"functions": len(walk.functions), "rooms": len(walk.rooms)}


def _replies(walk: Walk, run: Callable[[type], None]) -> dict[str, float]:
    """Follow what happens to each reply to training after the first rounds.

    Args:
        walk: counts.
        run: carries a run out on a grid of the class that it is given.
    """
    from fedmf.flower import InProcessGrid

    seen = [0]

    class Handing(InProcessGrid):
        """A grid that has all replies before it hands one over."""

        def pull_messages(self, message_ids: Any) -> Iterator[Any]:
            for reply in list(super().pull_messages(message_ids)):
                seen[0] += reply.metadata.message_type == "train"
                if reply.metadata.message_type != "train" or seen[0] <= FIRST:
                    yield reply
                    continue
                walk.start()
                try:
                    yield reply
                finally:
                    walk.stop()

    run(Handing)
    return walk.row(seen[0] - FIRST)


def own_reply(package: Path, folder: Path) -> dict[str, float]:
    """A row of one user, in fedmf's own strategy."""
    from support.small_runs import client_for, linear_task, small_run

    from fedmf.flower import run_on_grid
    from fedmf.runs import Session

    run = small_run(linear_task(24, 30), messages="per-user", users_per_message=1)

    def carried_out(grid: Any) -> None:
        with Session.start(folder / "own", run) as session:
            run_on_grid(session, grid(client_for(session)))

    return _replies(Walk(package), carried_out)


def wrapped_reply(package: Path, folder: Path) -> dict[str, float]:
    """The arrays of one user, around FedAvg."""
    from flwr.serverapp.strategy import FedAvg
    from support import wrapped_apps as apps

    def carried_out(grid: Any) -> None:
        app = apps.adding(lambda user, _: apps.update_of(user))
        strategy = apps.private(FedAvg(), folder / "app")
        strategy.start(grid=grid(app, nodes=apps.USERS), initial_arrays=apps.model())

    return _replies(Walk(package), carried_out)


WALKS: Final[dict[str, Callable[[Path, Path], dict[str, float]]]] = {
    "a pushed row": pushed_row,
    f"{KEY} to its use": configuration_key,
    "a reply, own strategy": own_reply,
    "a reply, CorrelatedNoise": wrapped_reply,
}


def here() -> dict[str, dict[str, float]]:
    """All walks through the package that this process imports."""
    import logging

    import fedmf

    logging.disable(logging.CRITICAL)
    package = Path(fedmf.__file__).parent
    sys.path.insert(0, str(package.parent / "tests"))
    found = dict[str, dict[str, float]]()
    for name, walk in WALKS.items():
        with tempfile.TemporaryDirectory(prefix="walks-") as folder:
            found[name] = walk(package, Path(folder))
    return found


def measured(tree: Path) -> dict[str, dict[str, float]]:
    """All walks through a checkout, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="walks-state-") as state:
        environment = {**os.environ, "PYTHONPATH": str(tree), "XDG_STATE_HOME": state, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--here"]
        said = subprocess.run(
            command, cwd=state, env=environment, capture_output=True, text=True, check=False
        )
    if said.returncode:
        raise SystemExit(f"{tree}: {said.stderr.strip().splitlines()[-1]}")
    return json.loads(said.stdout.splitlines()[-1])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--here", action="store_true", help="measure the package on the path, as JSON")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(here()))
        return 0
    trees = {"this tree": ROOT} | ({} if given.tree is None else {str(given.tree): given.tree.resolve()})
    found = {name: measured(tree) for name, tree in reversed(trees.items())}
    print(f"{'walk':38s} {'of':12s} " + " → ".join(f"{name:>14s}" for name in found))
    for walk in WALKS:
        for what in next(iter(found.values()))[walk]:
            print(f"{walk:38s} {what:16s} " + " → ".join(f"{row[walk][what]:14g}" for row in found.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
