"""``fedmf export``: the released model of a run as a file of tensors."""

from __future__ import annotations

from pathlib import Path

import typer

from fedmf.cli.account import tell_verdict


def export(
    run_dir: Path = typer.Argument(
        ..., metavar="RUN_DIR", help="Directory of a finished, running or stopped run."
    ),
    output: Path = typer.Option(
        ..., "--output", metavar="FILE", help="New file that ends with .safetensors or .pt."
    ),
) -> None:
    """Write the model that a run released last, by the names of the module's parameters.

    Neither the data nor the task of the run are needed. A file that exists is never replaced.

    Example: fedmf export runs/a --output model.safetensors
    """
    from fedmf.records import write_tensors
    from fedmf.runs import ReleasedModel

    model = ReleasedModel.of(run_dir)
    tell_verdict(run_dir, model.verdict)
    write_tensors(output, model.tensors, {"software": model.software, "rounds": str(model.rounds)})
    entries = sum(tensor.numel() for tensor in model.tensors.values())
    typer.echo(
        f"{output}: {entries:,} parameters in {len(model.tensors)} tensors after {model.rounds} rounds."
    )
