"""Training figures of the papers, at their size or reduced to minutes on data that every machine has.

    python simulations/papers/run.py --list
    python simulations/papers/run.py lambda-cgd-fig2 --reduced --processes 2
    python simulations/papers/run.py lambda-cgd-fig2 --full --processes 4   # CIFAR-10 and IMDb from the hub
    python simulations/papers/run.py lambda-cgd-fig2 --full --show          # its first configuration
    python simulations/papers/run.py --tables        # pages and pictures from the cells

Learning rates are chosen for every point on seeds that are not used for the figure; in practice such a choice
on private data costs privacy that no statement covers. Every finished run is a line of the cells file, so a
stopped comparison goes on where it ended. Noise comes from public seeds: such runs protect nobody.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from catalogue import FIGURES
from cells import Cells
from comparison import compare
from figures import Cell

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "papers"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", choices=[*FIGURES, []], help="figures; see --list")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--reduced", dest="form", action="store_const", const="reduced", default="reduced")
    size.add_argument("--full", dest="form", action="store_const", const="full")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seeds", type=int, help="of the final runs; the figure's own without it")
    parser.add_argument("--cells", type=Path, default=RESULTS / "cells.jsonl")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--show", action="store_true", help="print the first configuration instead of running"
    )
    parser.add_argument("--tables", action="store_true", help="only write pages and pictures from the cells")
    options = parser.parse_args()
    if options.list:
        for figure in FIGURES.values():
            print(f"{figure.name:<18} {figure.paper:<12} {figure.item:<22} {figure.shows}")
        return
    if options.show:
        from fedmf.runs import render_toml, run_of

        for name in options.name:
            form = FIGURES[name].form(options.form)
            first = Cell(name, options.form, *next(form.spots()), form.rates[0], 0)
            print(render_toml(run_of(form.configuration(first))))
        return
    from report import write_pages

    cells = Cells(options.cells)
    for name in [] if options.tables else options.name:
        figure = FIGURES[FIGURES[name].runs_of or name]
        compare(
            figure, options.form, cells, options.processes, options.seeds or figure.form(options.form).seeds
        )
    write_pages(cells, options.output, options.name or list(FIGURES))


if __name__ == "__main__":
    main()
