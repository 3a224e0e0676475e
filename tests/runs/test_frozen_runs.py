"""Runs of models with frozen and tied parameters on dictionaries of tensors: noise, records,
export.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.named_features import TRAINED, MaskedWords, UnregisteredWords, masked_task
from support.small_runs import Recorder, client_for, run_small, small_run
from torch import nn

import fedmf

SIZES = [4, 7, 2, 3, 5, 1, 6, 4, 4, 3, 2, 8]


def run_of(module: type[nn.Module] = MaskedWords, **named: object) -> fedmf.Run:
    return small_run(masked_task(SIZES, module), users=len(SIZES), cohort_size=4, rounds=3, **named)


@pytest.mark.parametrize(
    ("messages", "mechanism"), [("aggregate", "bisr"), ("per-user", "identity")]
)
def test_noise_ledger_and_messages_have_the_trained_dimension(
    messages: str, mechanism: str, tmp_path: Path
) -> None:
    """The released models are, to the bit, those of a module that knows of no constants at all."""
    recorder = Recorder()
    unknown = Recorder()
    keys = {"messages": messages, "mechanism": mechanism}
    run = run_of(**keys)
    released = run_small(tmp_path / "a", run, lambda session: client_for(session, recorder))
    other = run_of(UnregisteredWords, **keys)
    same = run_small(tmp_path / "b", other, lambda session: client_for(session, unknown))
    assert released.shape == (TRAINED,)
    assert {model.shape for model in recorder.models.values()} == {(TRAINED,)}
    assert (released == same).all()
    assert recorder.models.keys() == unknown.models.keys()
    noiseless = run_small(tmp_path / "c", run_of(**keys, private=False))
    assert (released != noiseless).all(), "noise in every coordinate"
    with fedmf.resume(run, tmp_path / "a") as session:
        assert session.directory.header.dimension == TRAINED
        assert [name for name, _ in session.directory.header.arrays] == [
            "embedding.weight",
            "head.bias",
        ]
