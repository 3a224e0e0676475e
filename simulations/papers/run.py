"""Training figures of the papers, at their size or reduced to minutes on data that every machine
has.

    python simulations/papers/run.py --list
    python simulations/papers/run.py lambda-cgd-fig2 --reduced
    python simulations/papers/run.py lambda-cgd-fig2 --full          # CIFAR-10 and IMDb from the
    hub python simulations/papers/run.py lambda-cgd-fig2 --full --show   # its first configuration
    python simulations/papers/run.py --tables        # pages and pictures from the committed points

Learning rates are chosen for every point on seeds that are not used for the figure; in practice
such a choice on private data costs privacy that no statement covers. Every finished run is a line
of the cells file, so a stopped comparison goes on where it ended; what is reported of a figure is
in points.json. Noise comes from public seeds: such runs protect nobody.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from calibration import Calibrations
from catalogue import FIGURES
from cells import Cells
from comparison import compare
from figures import Cell

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "papers"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", choices=[*FIGURES, []], help="figures; see --list")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--reduced", dest="form", action="store_const", const="reduced", default="reduced"
    )
    size.add_argument("--full", dest="form", action="store_const", const="full")
    parser.add_argument(
        "--cells", type=Path, default=ROOT / "build" / "papers.jsonl", help="finished runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--show", action="store_true", help="print the first configuration instead of running"
    )
    parser.add_argument(
        "--tables", action="store_true", help="only write pages and pictures from the points"
    )
    options = parser.parse_args()
    if options.list:
        for figure in FIGURES.values():
            print(f"{figure.name:<18} {figure.paper:<12} {figure.item:<22} {figure.shows}")
        return
    if options.show:
        from fedmf.runs.tables.configuration import render_toml, run_of

        for name in options.name:
            form = FIGURES[name].form(options.form)
            first = Cell(name, options.form, *next(form.spots()), form.rates[0], 0)
            print(render_toml(run_of(form.configuration(first))))
        return
    from points import read_points, write_points
    from report import write_pages

    kept = options.output / "points.json"
    if not options.tables:
        torch.set_num_threads(1)
        cells = Cells(options.cells, Calibrations(RESULTS / "calibrations.jsonl"))
        options.output.mkdir(parents=True, exist_ok=True)
        for figure in compare(
            [FIGURES[name] for name in options.name or FIGURES], options.form, cells
        ):
            write_points(kept, figure, options.form, cells)
    found = read_points(kept)
    write_pages(found, options.output, options.name or list(FIGURES))


if __name__ == "__main__":
    main()
