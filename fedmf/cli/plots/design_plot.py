"""The picture of a comparison: error against the vectors kept between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedmf.factorization import Objective

_SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(option: str, file: Path) -> None:
    """Whether a picture can be drawn there, before anything is computed.

    Raises:
        ValueError: matplotlib is missing, the format is unknown or the folder does not exist.
    """
    if find_spec("matplotlib") is None:
        raise ValueError(f"{option} (picture) needs matplotlib; got none. Install fedmf[report].")
    if file.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"{option} (file) must end in {', '.join(_SUFFIXES)}; got {file.name!r}.")
    if not file.parent.is_dir():
        raise ValueError(f"{option} (file) must lie in a folder that exists; got {file}.")


def save_plot(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the objective against memory, the best mechanism for each amount of memory joined by a line.

    Raises:
        ValueError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    frontier: list[tuple[int, float]] = []
    for row in sorted(rows, key=lambda row: (row["memory_vectors"], row["objective_error"])):
        if not frontier or row["objective_error"] < frontier[-1][1]:
            frontier.append((row["memory_vectors"], row["objective_error"]))
    axes.step(*zip(*frontier, strict=True), where="post", color="0.7", zorder=0)
    for at, row in enumerate(rows):
        filled = row["sensitivity_kind"] == "exact"
        colour = f"C{at % 10}"
        marker = "osD^vP*X"[at // 10 % 8]
        axes.plot(
            row["memory_vectors"],
            row["objective_error"],
            marker,
            color=colour,
            fillstyle="full" if filled else "none",
            label=row["mechanism"],
        )
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=-0.3)
    axes.set_yscale("log")
    axes.set_xlabel("model-sized vectors kept between rounds")
    first = rows[0]
    label = Objective.parse(first["objective"]).label
    axes.set_ylabel(label if first["noise_multiplier"] is None else f"{label}, noise multiplier included")
    axes.set_title(
        f"{first['workload']}, n = {first['rounds']}, k = {first['max_participations']}, "
        f"b = {first['min_separation']} (hollow: sensitivity is a bound)",
        fontsize=10,
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False)
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ValueError(f"--plot (file) must be writable; got {file}: {error.strerror}.") from None
