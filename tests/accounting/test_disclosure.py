"""Entries of the public registry and NIST's fields: the registry's schema, and nothing that is not public."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.amplified_runs import keys
from support.command_line import one_line
from support.headers import make_header
from support.small_runs import small_run

from fedmf.accounting import (
    Deployment,
    NoPrivacy,
    as_json,
    as_yaml,
    evidence_of,
    nist_fields,
    nist_table,
    planned_statement,
    registry_entry,
)
from fedmf.cli.app import run as command
from fedmf.noise import NoiseKey
from fedmf.runs import public_statement
from fedmf.runs.planning import plan_run
from fedmf.runs.recorded import header_of

TEXT = str
#: The fields of opendp/deployments-registry-data at commit 3e9c812: type, or what may stand there; required
#: fields end in "!". No field that is not named is allowed.
SCHEMA: dict[str, Any] = {
    "url_slug!": TEXT,
    "status!": {
        "Converted",
        "Draft",
        "Pending",
        "Changes Required",
        "Approved",
        "Approved (Update Requested)",
        "Approved (Pending)",
    },
    "tier!": {1, 2, 3},
    "deployment!": {
        "basic!": {
            "name!": TEXT,
            "data_curators!": [TEXT],
            "intended_use!": TEXT,
            "data_product_type!": {
                "Summary statistics",
                "Machine learning model",
                "Dataset",
                "Synthetic data",
                "Interactive API",
                "SQL queries",
            },
            "data_product_region!": TEXT,
            "description!": TEXT,
            "publication_date!": datetime.date,
            "data_product_sector": {
                "Technology",
                "Healthcare",
                "Education",
                "Government",
                "Energy",
                "Finance",
            },
        },
        "dp_variant": {
            "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
            "data_domain": TEXT,
            "unprotected_quantities": TEXT,
        },
        "privacy_loss": {
            "privacy_unit": TEXT,
            "privacy_unit_details": TEXT,
            "privacy_parameters": {"epsilon": float, "delta": float, "rho": float},
            "privacy_parameters_details": TEXT,
        },
        "deployment_model": {
            "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
            "model_name_details": TEXT,
            "actors": TEXT,
            "release_type": {"One release", "Many releases"},
            "release_type_details": TEXT,
            "data_source_type": {"Static", "Dynamic"},
            "data_source_type_details": TEXT,
            "access_type": {"Interactive", "Non-interactive"},
            "access_type_details": TEXT,
        },
        "accounting": {"post_processing": TEXT, "composition": TEXT},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": TEXT,
            "mechanisms": TEXT,
            "justification": TEXT,
        },
        "administrative": {"sources": TEXT, "notes": TEXT, "registry_authors!": [TEXT]},
    },
}


def faults(value: Any, schema: Any, at: str = "entry") -> list[str]:
    """Where an entry is not as the registry wants it."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{at} is no mapping"]
        names = {name.removesuffix("!"): inner for name, inner in schema.items()}
        missing = [name[:-1] for name in schema if name.endswith("!") and name[:-1] not in value]
        found = [f"{at}.{name} is missing" for name in missing]
        found += [f"{at}.{name} is not allowed" for name in value if name not in names]
        return found + [
            fault
            for name in names.keys() & value.keys()
            for fault in faults(value[name], names[name], f"{at}.{name}")
        ]
    if isinstance(schema, list):
        good = isinstance(value, list) and value and all(isinstance(inner, schema[0]) for inner in value)
    elif isinstance(schema, set):
        good = value in schema
    elif schema is datetime.date:
        good = isinstance(value, str) and datetime.date.fromisoformat(value).isoformat() == value
    else:
        good = isinstance(value, schema) and not isinstance(value, bool)
    return [] if good else [f"{at} must not be {value!r}"]


DEPLOYMENT = Deployment(
    name='A "model": of # things',
    curators=("Example Org",),
    use="show | it",
    region="nowhere",
    description="line\nand another é",
    date="2026-11-22",
    authors=("A. Author",),
    sector="Technology",
    sources=("https://example.org",),
)


def amplified() -> dict[str, Any]:
    run = small_run(None, **keys("balls-in-bins"))
    plan = plan_run(run, run.optimizer_source.build([(3,)], run.cohorts.rounds), 3, {})
    header = header_of(run, plan, NoiseKey.from_os(), 3)
    return json.loads(as_json(planned_statement(header, 0).public()))


def plain(**changes: Any) -> dict[str, Any]:
    return json.loads(as_json(planned_statement(make_header(**changes), 3).public()))


@pytest.mark.parametrize("kind", ["plain", "amplified"])
def test_an_entry_has_the_fields_of_the_registry(kind: str) -> None:
    statement = plain() if kind == "plain" else amplified()
    entry = registry_entry(statement, DEPLOYMENT)
    assert faults(entry, SCHEMA) == []
    text = as_yaml(entry)
    assert yaml.safe_load(text) == entry
    loss = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert loss["epsilon"] >= statement["epsilon_planned"]
    assert loss["epsilon"] == pytest.approx(statement["epsilon_planned"], rel=1e-5)
    assert loss["delta"] == statement["delta"]
    assert ("rho" in loss) == (kind == "plain")  # of an amplified run it would be that of known cohorts
    assert '""' not in text  # nothing is empty


def test_the_check_of_the_schema_sees_what_is_wrong() -> None:
    entry = registry_entry(plain(), DEPLOYMENT)
    wrong = json.loads(json.dumps(entry))
    wrong["tier"], wrong["surprise"] = 0, 1
    del wrong["deployment"]["basic"]["description"]
    wrong["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = "8"
    wrong["deployment"]["administrative"]["registry_authors"] = []
    assert len(faults(wrong, SCHEMA)) == 5


def test_nists_fields_are_all_answered_and_print_as_a_table() -> None:
    for statement in (plain(), amplified()):
        rows = nist_fields(statement, DEPLOYMENT)
        assert [row for row in rows if not row["value"].strip()] == []
        parts = list(dict.fromkeys(row["part"] for row in rows))
        assert parts == [
            "privacy parameters",
            "unit of privacy",
            "algorithms",
            "correctness",
            "utility",
            "bias",
            "access control",
            "trust model",
            "side channels",
            "data collection",
        ]
        table = nist_table(rows).splitlines()
        assert len(table) == len(rows) + 2
        assert {line.replace("\\|", "").count("|") for line in table} == {4}
    amplified_epsilon = nist_fields(amplified(), DEPLOYMENT)[0]
    assert "while cohorts stay secret" in amplified_epsilon["value"]


def test_only_a_public_statement_that_promises_something_is_taken() -> None:
    operators = planned_statement(make_header(), 3).to_dict()
    public_seed = plain(key_public=True)
    silent = plain(noise_multiplier=0.0, privacy=NoPrivacy(), key_fingerprint=None)
    for statement in (operators, public_seed, silent):
        for form in (registry_entry, nist_fields):
            with pytest.raises(ValueError, match="statement must"):
                form(statement, DEPLOYMENT)


@pytest.mark.parametrize(
    "change",
    [{"name": " "}, {"curators": ()}, {"authors": ("",)}, {"product": "A toy"}, {"sector": "Toys"}]
    + [{"date": date} for date in ("2026-13-01", "22.11.2026", "20261122", "")],
)
def test_what_the_operator_must_say_is_asked_for(change: dict[str, Any]) -> None:
    given = {name: getattr(DEPLOYMENT, name) for name in ("name", "curators", "use", "region", "description")}
    with pytest.raises(ValueError, match=rf"{next(iter(change))} \(of"):
        Deployment(**{**given, "date": "2026-11-22", "authors": ("A",), **change})


def test_the_command_verifies_before_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(users=8, cohort_size=2, rounds=8, epsilon=3.0, noise_seed=-1)
    with run.start(tmp_path / "run") as session:
        document = public_statement(planned_statement(session.directory.header, 0))
    path = tmp_path / "statement.json"
    path.write_text(as_json(document), encoding="utf-8")
    said = ["--name", "N", "--curator", "C", "--use", "U", "--region", "R", "--description", "D"]
    said += ["--date", "2026-11-22", "--author", "A"]
    capsys.readouterr()
    assert command(["registry", str(path), *said]) == 0
    entry = yaml.safe_load(capsys.readouterr().out)
    assert faults(entry, SCHEMA) == []
    assert entry["url_slug"] == "n-c-2026"
    assert command(["registry", str(path), *said, "--form", "nist", "--output", str(tmp_path / "t.md")]) == 0
    assert "| privacy parameters | epsilon | 3 for all 8 rounds |" in (tmp_path / "t.md").read_text()
    assert command(["registry", str(path), *said, "--form", "nist-json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["value"] == "3 for all 8 rounds"
    path.write_text(as_json({**document, "epsilon_planned": 1.0}), encoding="utf-8")
    assert command(["registry", str(path), *said]) == 2
    assert "contradicts itself" in one_line(capsys)
    assert evidence_of(session.directory.header) == document["evidence"]
