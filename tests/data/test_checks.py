"""Checks of a caller's input hold under ``python -O`` too, which removes assertions."""

from __future__ import annotations

import subprocess
import sys

import pytest

CREATE = """
import torch
from fedmf.data import InMemoryDataset

assert False, "assertions are on"
x = torch.zeros(2, 3)
y = torch.zeros(2)
InMemoryDataset(x, y, {owned}, {user_ids}, x, y)
"""


@pytest.mark.parametrize(
    ("owned", "user_ids", "message"),
    [
        ("[[0], [1]]", "['ann', 'ann']", "user ids must be unique; got 1 different of 2."),
        ("[[0], [1]]", "['ann', ' bob']", "user ids must be as fedmf.data.canonical_id writes"),
        ("[[0], [1]]", "['ann', 7]", "user ids must be strings; got 7."),
        ("[[0], [True]]", "['ann', 'bob']", "owned (examples of a user) must be indices of rows"),
    ],
)
def test_users_are_checked_without_assertions(owned: str, user_ids: str, message: str) -> None:
    program = CREATE.format(owned=owned, user_ids=user_ids)
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=600
    )
    assert f"ValueError: {message}" in done.stderr
