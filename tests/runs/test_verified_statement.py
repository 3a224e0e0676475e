"""Published statements are checked by others: what is unchanged holds, and every change is refused."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
from support.command_line import one_line
from support.small_runs import small_run

import fedmf
from fedmf.accounting import gaussian_delta
from fedmf.cli.app import run as command
from fedmf.noise import NoiseKey
from fedmf.records import SigningKey, unguarded
from fedmf.runs import (
    StatementRefused,
    opened_evidence,
    public_statement,
    publish_statement,
    verify_statement,
)
from fedmf.runs.publication.verification import recompute
from fedmf.statements import as_json

FOLDER = Path(__file__).resolve().parents[2] / "simulations" / "reliability"
sys.path.insert(0, str(FOLDER))
import tampered_statements as tampering  # noqa: E402  # pyright: ignore[reportMissingImports]

sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tampering.Published:
    """A run stopped after 6 of 12 rounds, with private evaluation, and its signed statement."""
    with unguarded():
        return tampering.publish(tmp_path_factory.mktemp("published"))


def written(folder: Path, document: dict) -> Path:
    path = folder / "statement.json"
    path.write_text(as_json(document), encoding="utf-8")
    return path


def signed(document: dict, key: SigningKey) -> dict:
    """The same, signed anew."""
    from fedmf.runs.publication import signed_document

    signature = {"public_key": key.public_key, "value": key.sign(signed_document(document))}
    return {**document, "signature": {**document["signature"], **signature}}


def test_an_unchanged_statement_is_verified_with_and_without_the_run(
    made: tampering.Published, tmp_path: Path
) -> None:
    path, document = written(tmp_path, made.document), made.document
    alone = verify_statement(path)
    assert any("whose the key" in text for text in alone.unverified)
    assert any("--run" in text for text in alone.unverified)
    with unguarded():
        full = verify_statement(path, made.operator.public_key, made.run)
    assert "signed with the operator's key" in full.verified[0]
    assert any("after 6" in text for text in full.verified)
    assert any("last state" in text for text in full.verified)
    assert not any("--run" in text for text in full.unverified)
    assert any("noise was added" in text for text in full.unverified)
    figures = full.figures
    for row, factor in zip(figures["adjacencies"].values(), (1, 2), strict=True):
        assert row["mu"] == pytest.approx(document["mu_planned"] * factor, rel=1e-12)
        assert gaussian_delta(1 / row["mu"], row["epsilon"]) == pytest.approx(1e-5, rel=1e-4)
    assert figures["rounds_released"] == 6
    assert figures["sensitivity"] == document["sensitivity"]


@pytest.mark.parametrize("kind", [*tampering.STATEMENTS, *tampering.LEDGERS])
def test_whatever_is_changed_is_refused_in_one_line(made: tampering.Published, kind: str) -> None:
    draw = random.Random(f"tampered {kind}")
    with unguarded():
        outcomes = [tampering.tried(made, kind, draw) for _ in range(5)]
    assert [entry for entry in outcomes if entry[0] != "refused"] == []


def test_the_signature_is_of_every_field(made: tampering.Published, tmp_path: Path) -> None:
    """Also of the digests of the record, which nobody without the run can check in another way."""
    changes = {name: "another" for name in made.document if name != "signature"}
    for name, other in {**changes, "record": {**made.document["record"], "rounds": "0" * 64}}.items():
        with pytest.raises(StatementRefused, match="the signature is not one of this statement"):
            verify_statement(written(tmp_path, {**made.document, name: other}))


def test_every_single_figure_follows_from_the_evidence(made: tampering.Published) -> None:
    """Even the operator, who can sign anything, can change none of them."""
    draw, seen = random.Random(5), 0
    for way in tampering.numbers(made.document):
        if way[0] == "evidence":
            continue
        document = json.loads(made.content)
        inner = document
        for key in way[:-1]:
            inner = inner[key]
        inner[way[-1]] = tampering.changed(inner[way[-1]], draw)
        with pytest.raises(StatementRefused):
            recompute(document)
        seen += 1
    assert seen > 30


def test_another_text_of_the_same_values_is_no_statement(made: tampering.Published, tmp_path: Path) -> None:
    """Else two readers could take two meanings from one signed file, as from a name that stands twice."""
    text = as_json(made.document)
    twice = text.replace('{\n  "unit": "user",', '{\n  "unit": "nobody",\n  "unit": "user",', 1)
    longer = text.replace('"clip_norm": 0.3,', '"clip_norm": 0.30,', 1)
    for other in (twice, longer, text + " ", text.rstrip("\n"), json.dumps(made.document), "[]\n", "NaN"):
        assert other != text
        (tmp_path / "statement.json").write_text(other, encoding="utf-8")
        with pytest.raises(StatementRefused, match="a byte was changed"):
            verify_statement(tmp_path / "statement.json", made.operator.public_key)


def test_sentences_cannot_be_changed_either(made: tampering.Published) -> None:
    for name in ("assumptions", "not_covered", "trust", "secret", "sampling", "noise_key"):
        document = json.loads(made.content)
        document[name] = document[name][:-1]
        with pytest.raises(StatementRefused, match="contradicts itself"):
            recompute(document)
    document = json.loads(made.content)
    del document["not_covered"]
    with pytest.raises(StatementRefused, match="fields of the statement"):
        recompute(document)
    with pytest.raises(StatementRefused, match="fields of the statement"):
        recompute({**made.document, "certified": True})


def test_a_statement_before_round_0_commits_to_plan_and_key(tmp_path: Path) -> None:
    key = SigningKey.create(tmp_path / "key")
    run = small_run(users=8, cohort_size=2, rounds=4, epsilon=3.0, noise_seed=-1)

    def published(path: Path, name: str) -> Path:
        with opened_evidence(path) as evidence:
            made = public_statement(evidence.statement, evidence.ledger, evidence.own_records, key)
        publish_statement(tmp_path / name, made)
        return tmp_path / name / "statement.json"

    with fedmf.start(run, tmp_path / "run"):
        pass
    early = Path(shutil.copytree(tmp_path / "run", tmp_path / "early"))
    before = published(tmp_path / "run", "before")
    commitment = json.loads(before.read_text())["evidence"]["key_commitment"]
    with pytest.MonkeyPatch.context() as patched:  # another key, of the same 16 digits of fingerprint
        patched.setattr(NoiseKey, "commitment", property(lambda _: "0" * 64))
        with pytest.raises(StatementRefused, match="is not the one that the run committed to before round 0"):
            verify_statement(before, None, tmp_path / "run")
    fedmf.simulate(run, tmp_path / "run")
    after = published(tmp_path / "run", "after")
    found = verify_statement(after, key.public_key, tmp_path / "run", before)
    assert any("before any release" in text for text in found.verified)
    assert sum("is the one that was signed" in text for text in found.verified) == 2
    assert json.loads(after.read_text())["evidence"]["key_commitment"] == commitment
    (early / "noise.key").unlink()
    with pytest.raises(StatementRefused, match="the record has 0 rounds; the statement says 4"):
        verify_statement(after, None, early)
    keyless = Path(shutil.copytree(tmp_path / "run", tmp_path / "keyless"))
    (keyless / "noise.key").unlink()
    assert any("without noise.key" in text for text in verify_statement(after, None, keyless).unverified)
    with pytest.raises(StatementRefused, match="of more rounds"):
        verify_statement(before, None, None, after)
    bare = {name: value for name, value in json.loads(after.read_text()).items() if name != "record"}
    unsigned = written(tmp_path, {**bare, "signature": None})
    for one, other in ((unsigned, before), (after, unsigned)):
        with pytest.raises(StatementRefused, match="both statements must be signed"):
            verify_statement(one, None, None, other)
    with pytest.raises(StatementRefused, match=f"^{tmp_path} is not a run directory"):  # not "damaged"
        verify_statement(after, None, tmp_path)
    fedmf.simulate(run, tmp_path / "other")  # the same plan with another noise key
    other = published(tmp_path / "other", "other-statement")
    with pytest.raises(StatementRefused, match=r"another plan or noise key: key_fingerprint"):
        verify_statement(other, None, None, before)
    with pytest.raises(StatementRefused, match="another plan or noise key"):
        verify_statement(after, None, tmp_path / "other")
    stolen = {**json.loads(other.read_text()), "record": json.loads(after.read_text())["record"]}
    with pytest.raises(StatementRefused, match="not the one that was signed"):
        verify_statement(written(tmp_path, signed(stolen, key)), None, tmp_path / "other")


def test_a_run_can_be_prepared_and_stopped_before_round_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--set", "cohorts.rounds=4", "--set", "data.users=20", "--set", "cohorts.size=5"]
    place = str(tmp_path / "run")
    with unguarded():
        assert command(["simulate", "configs/digits.toml", *small, "--out", place, "--prepare"]) == 0
    assert f"fedmf simulate --resume {place}" in capsys.readouterr().out
    assert command(["account", place, "--publish", str(tmp_path / "before")]) == 0
    assert json.loads((tmp_path / "before" / "statement.json").read_text())["rounds_released"] == 0
    capsys.readouterr()
    assert command(["simulate", "--resume", place, "--prepare"]) == 2
    assert "--prepare makes a new run directory" in one_line(capsys)


def test_the_commands(made: tampering.Published, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, made.document)
    assert command(["verify", str(path), "--signed-by", str(made.folder / "operator.pub"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"figures", "verified", "unverified", "stated"}
    assert command(["verify", str(path)]) == 0
    said = capsys.readouterr().out
    assert "Computed again:" in said
    assert "Not verified:" in said
    assert "6 rounds released" in said
    assert command(["verify", str(path), "--signed-by", str(made.folder / "stranger.pub")]) == 2
    assert "not with that of the operator" in one_line(capsys)
    path.write_text(path.read_text().replace("8.0", "4.0", 1))
    assert command(["verify", str(path)]) == 2
    one_line(capsys)
    unsigned = {name: made.document[name] for name in made.document if name not in ("record", "signature")}
    assert command(["verify", str(written(tmp_path, unsigned))]) == 0
    assert "it is not signed" in capsys.readouterr().out
    assert command(["verify", str(path), "--signed-by", str(made.folder / "operator.pub")]) == 2
    assert "is not signed" in one_line(capsys)
    assert command(["verify", str(written(tmp_path, {**unsigned, "record": None}))]) == 2
    assert "was taken away" in one_line(capsys)
    assert command(["verify", str(made.run / "config.toml")]) == 2
    assert "no statement" in one_line(capsys)
    assert command(["keygen", str(tmp_path / "k")]) == 0
    capsys.readouterr()
    assert command(["account", str(made.run), "--sign-with", str(tmp_path / "k")]) == 2
    assert "give --publish DIR too" in one_line(capsys)
    assert (
        command(
            ["account", str(made.run), "--publish", str(tmp_path / "p"), "--sign-with", str(tmp_path / "k")]
        )
        == 0
    )
    assert command(["verify", str(tmp_path / "p" / "statement.json")]) == 0
    assert b"PRIVATE" not in b"".join(entry.read_bytes() for entry in (tmp_path / "p").iterdir())
