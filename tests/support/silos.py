"""Small silos, and a server that may ask them anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fedmf.flower import InProcessGrid, Silo, silo_app
from fedmf.runs.silo import Train

PEOPLE = tuple(f"p{number:02d}" for number in range(12))
TRAINING = "heart"
ROUNDS = 8
CLIP = 0.5
#: Eight releases of four people: k = 3, b = 3.
FILE = """
[silo]
training = "heart"
directory = "{directory}"
[cohorts]
rounds = {rounds}
users-per-round = 4
{cohorts}
[privacy]
epsilon = 8.0
delta = 1e-5
clip-norm = 0.5
{privacy}
[mechanism]
kind = "bisr"
"""


def silo_file(
    folder: Path, rounds: int = ROUNDS, privacy: str = "noise-seed = 7", cohorts: str = ""
) -> Path:
    """The file of a silo, next to its directory."""
    file = folder / "silo.toml"
    directory = folder / "silo"
    text = FILE.format(directory=directory, rounds=rounds, privacy=privacy, cohorts=cohorts)
    file.write_text(text)
    return file


def rows(dimension: int) -> dict[str, NDArray[np.float32]]:
    """An update for each person: some are longer than ζ and some shorter."""
    x = np.random.default_rng(5).standard_normal((len(PEOPLE), dimension))
    x *= np.linspace(0.1, 2 * CLIP, len(x))[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    return dict(zip(PEOPLE, x.astype(np.float32), strict=True))


def start(dimension: int) -> dict[str, NDArray[Any]]:
    """A model with one array that is trained, and one that is not."""
    return {"w": np.zeros(dimension, np.float32), "steps": np.array(3)}


def small_silo(file: Path, dimension: int, train: Train | None = None) -> Silo:
    """A silo in which every person's update is a row of `rows`, whatever the model is."""
    given = rows(dimension)
    return Silo(
        file,
        users=PEOPLE,
        model=start(dimension),
        train=train or (lambda user, _model: {"w": given[user]}),
    )


class Asking:
    """A server of one silo, which keeps everything that crosses the wire.

    Args:
        silo_of: makes the silo of a message.
        run_config: what the server's run config says.
    """

    def __init__(
        self, silo_of: Callable[[Context], Silo], run_config: Mapping[str, Any] | None = None
    ) -> None:
        self._grid = InProcessGrid(silo_app(silo_of), 1, run_config)
        self.replies = list[Message]()

    def ask(
        self,
        server_round: object,
        model: Mapping[str, Any],
        kind: str = MessageType.TRAIN,
        **changes: Any,
    ) -> NDArray[np.int64] | str:
        """The integers of a reply, or the text of its error; a key with the value None is left
        out.
        """
        values = {"server_round": server_round, "training": TRAINING, "clip_norm": CLIP, **changes}
        config = ConfigRecord(
            {key.replace("_", "-"): v for key, v in values.items() if v is not None}
        )
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in model.items()})
        content = RecordDict({"arrays": arrays, "config": config})
        node = self._grid.get_node_ids()[0]
        (reply,) = self._grid.send_and_receive([Message(content, node, kind)])
        self.replies.append(reply)
        if reply.has_error():
            return str(reply.error.reason)
        return reply.content.array_records["arrays"]["sum"].numpy()
