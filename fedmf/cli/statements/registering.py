"""``fedmf registry``: a published statement as an entry of the public registry, or in NIST's fields."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path

import typer

__all__ = ["registry"]


class Form(StrEnum):
    """For whom a statement is written."""

    opendp = "opendp"
    nist = "nist"
    nist_json = "nist-json"


def registry(
    statement: Path = typer.Argument(
        ..., metavar="STATEMENT", help="The statement.json that fedmf account --publish wrote."
    ),
    name: str = typer.Option(..., help="Name of the data product."),
    curators: list[str] = typer.Option(..., "--curator", help="Who publishes it. Repeatable."),
    use: str = typer.Option(..., help="What it is meant for."),
    region: str = typer.Option(..., help="What the data describe, or whose law applies."),
    description: str = typer.Option(..., help="What it is, in a sentence."),
    date: str = typer.Option(..., metavar="YYYY-MM-DD", help="When it was published."),
    authors: list[str] = typer.Option(..., "--author", help="Who fills in this entry. Repeatable."),
    product: str = typer.Option("Machine learning model", help="Type of the data product."),
    sector: str = typer.Option("", help="Technology, Healthcare, Education, Government, Energy or Finance."),
    sources: list[str] = typer.Option([], "--source", help="Address of a text about it. Repeatable."),
    bias: str = typer.Option("", help="What is known of the error for different groups of people."),
    form: Form = typer.Option(
        Form.opendp, help="opendp: YAML of the deployments registry. nist: a table of SP 800-226's fields."
    ),
    output: Path | None = typer.Option(None, metavar="FILE", help="New file; by default it is printed."),
) -> None:
    """Write a published statement for a registry: what the statement knows, and what you add.

    The statement is verified first. Only what was published is read: nothing private can get in.

    Example: fedmf registry public/statement.json --name "Digits" --curator "Example Org" --use "Reading post
    codes" --region "Atlantis" --description "A classifier of digits" --date 2026-11-22 --author "A. Author"
    """
    from fedmf.accounting import Deployment, as_yaml, nist_fields, nist_table, registry_entry
    from fedmf.runs import read_statement, verify_statement

    verify_statement(statement)
    shown = read_statement(statement)
    deployment = Deployment(
        name=name,
        curators=tuple(curators),
        use=use,
        region=region,
        description=description,
        date=date,
        authors=tuple(authors),
        product=product,
        sector=sector,
        sources=tuple(sources),
        bias=bias,
    )
    if form is Form.opendp:
        text = as_yaml(registry_entry(shown, deployment))
    elif form is Form.nist:
        text = nist_table(nist_fields(shown, deployment))
    else:
        text = json.dumps(nist_fields(shown, deployment), indent=2, ensure_ascii=False) + "\n"
    _write(output, text)


def _write(output: Path | None, text: str) -> None:
    from fedmf.records import new_file

    if output is None:
        typer.echo(text, nl=False)
        return
    with new_file(output, mode=0o644) as file:
        file.write(text.encode())
