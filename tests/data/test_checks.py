"""Checks of a caller's input hold under ``python -O`` too, which removes assertions."""

from __future__ import annotations

import subprocess
import sys

#: Prints the error of each pair of rows of users and user ids.
PROGRAM = """
import torch
from fedmf.data import InMemoryDataset

assert False, "assertions are on"
x = torch.zeros(2, 3)
y = torch.zeros(2)
for owned, user_ids in (
    ([[0], [1]], ["ann", "ann"]),
    ([[0], [1]], ["ann", " bob"]),
    ([[0], [1]], ["ann", 7]),
    ([[0], [True]], ["ann", "bob"]),
):
    try:
        InMemoryDataset(x, y, owned, user_ids, x, y)
        print("accepted")
    except ValueError as error:
        print(error)
"""
MESSAGES = (
    "user ids must be unique; got 1 different of 2.",
    "user ids must be as fedmf.data.canonical_id writes",
    "user ids must be strings; got 7.",
    "owned (examples of a user) must be indices of rows",
)


def test_users_are_checked_without_assertions() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", PROGRAM], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    for line, message in zip(done.stdout.splitlines(), MESSAGES, strict=True):
        assert line.startswith(message)
