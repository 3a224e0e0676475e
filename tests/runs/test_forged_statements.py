"""What an operator could say under its own signature against its evidence: refused, or named as its word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import one_line
from support.small_runs import small_run

import fedmf
from fedmf.cli.app import run as command
from fedmf.records import SigningKey
from fedmf.runs.publication import signed_document
from fedmf.statements import RunHeader, as_json, planned_statement

Document = dict[str, Any]
INVENTED = {"name": "noise", "value": "added twice", "source": "the operator"}
#: What a run is like whose statement is forged.
RUNS: dict[str, dict[str, object]] = {
    "plain": {},
    "metrics of users": {"evaluation": "not-private"},
    "public seed": {"noise_seed": 7},
    "public seed of many digits": {"noise_seed": 7_000_003},
}


def _of_evidence(**changes: object) -> Callable[[Document], None]:
    return lambda document: document["evidence"].update(changes)


def _invented(document: Document) -> None:
    document["evidence"]["public_inputs"].append(INVENTED)


_secret = _of_evidence(key_public=False)


def _secret_and_no_seed(document: Document) -> None:
    _secret(document)
    document["evidence"]["run"]["privacy"]["noise_seed"] = None


@dataclass(frozen=True)
class Forgery:
    """A statement that its operator changed and signed again.

    Args:
        of: the run.
        change: what is said instead; all other words are made to follow from it.
        refused: with these words, by whoever has the statement alone; or
        stated: listed with these words as the operator's alone, and refused by who has the run directory.
        digests: whether it claims digests of the record, as with a secret key.
    """

    of: str
    change: Callable[[Document], None]
    refused: str = ""
    stated: str = ""
    digests: bool = True


FORGERIES = {
    "not_private emptied": Forgery("metrics of users", _of_evidence(not_private=[]), "not_private"),
    "any sentence in stated_by": Forgery(
        "plain",
        lambda document: document.update(stated_by="an auditor who found no fault"),
        "stated_by must be fedmf and a version",
    ),
    "public_inputs emptied": Forgery(
        "plain", _of_evidence(public_inputs=[]), "public_inputs must name how many users there are, 24"
    ),
    "public_inputs invented": Forgery(
        "plain",
        _invented,
        stated="public input noise: added twice (the operator)",
    ),
    "key_public false": Forgery("public seed", _secret, "key_public", digests=False),
    "key_public false, no seed": Forgery(
        "public seed", _secret_and_no_seed, "small public seed makes the noise key"
    ),
    "key_public false, no seed, no digests": Forgery(
        "public seed of many digits", _secret_and_no_seed, "key_public must be told", digests=False
    ),
    "key_public false, a seed of many digits": Forgery(
        "public seed of many digits",
        _secret_and_no_seed,
        stated="that the noise key is secret and random",
    ),
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SigningKey]:
    """Each kind of run with its signed statement, and the key."""
    folder = tmp_path_factory.mktemp("forged")
    key = SigningKey.create(folder / "operator.key")
    for name, words in RUNS.items():
        place = folder / name
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("XDG_STATE_HOME", str(folder / "state"))
            with fedmf.start(small_run(**{"noise_seed": -1, **words}), place / "run"):
                pass
            more = ["--publish", str(place / "public"), "--sign-with", str(folder / "operator.key")]
            assert command(["account", str(place / "run"), *more]) == 0
    return folder, key


def forged(document: Document, forgery: Forgery, key: SigningKey) -> str:
    """The statement with the change, all that follows from it, and a signature that fits."""
    forgery.change(document)
    header = RunHeader.from_dict(document["evidence"])
    follows = json.loads(as_json(planned_statement(header, document["rounds_released"]).public()))
    record = {"rounds": "5" * 64, "evaluations": None} if forgery.digests else None
    said = {**follows, "stated_by": document["stated_by"], "evidence": document["evidence"]}
    said = {name: said.get(name, document[name]) for name in document} | {"record": record}
    signature = {"public_key": key.public_key, "value": key.sign(signed_document(said))}
    return as_json({**said, "signature": {**document["signature"], **signature}})


@pytest.mark.parametrize("name", FORGERIES)
def test_an_operator_cannot_sign_words_that_its_evidence_contradicts(
    name: str, published: tuple[Path, SigningKey], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder, key), forgery = published, FORGERIES[name]
    statement, run = folder / forgery.of / "public" / "statement.json", folder / forgery.of / "run"
    assert command(["verify", str(statement), "--run", str(run)]) == 0
    (tmp_path / "statement.json").write_text(forged(json.loads(statement.read_text()), forgery, key))
    capsys.readouterr()
    status = command(["verify", str(tmp_path / "statement.json")])
    said = capsys.readouterr()
    assert status == (2 if forgery.refused else 0), said
    if forgery.refused:
        assert forgery.refused in said.err
        return
    word = said.out[said.out.index("operator's word alone") :]
    assert forgery.stated in " ".join(word.split())
    assert command(["verify", str(tmp_path / "statement.json"), "--run", str(run)]) == 2
    assert "has another plan or noise key than the statement" in one_line(capsys)
