"""A linear model of the effect of a dose, and made-up patients of three hospitals.

python -m silos.task FOLDER     # FOLDER/hospital-0.csv, FOLDER/hospital-0.toml, ...
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

MODEL = {"weights": np.zeros(2, np.float32), "offset": np.zeros(1, np.float32)}
SILO = """
[silo]
training = "doses"                 # the only training that this hospital serves
directory = "{folder}/hospital-{number}"

[cohorts]                          # n, k and b count the hospital's own releases
kind = "balls-in-bins"             # drawn here, in secret
rounds = 12
users-per-round = 50

[privacy]
epsilon = 8.0
delta = 1e-5
clip-norm = 0.5
amplified = true

[mechanism]
kind = "banded-toeplitz"
bands = 4
"""


def patients_of(file: str) -> dict[str, np.ndarray]:
    """Return age, dose and effect of each patient; ids in their order."""
    table = pd.read_csv(file, dtype={"patient": str})
    columns = ["age", "dose", "effect"]
    return {str(user): rows[columns].to_numpy() for user, rows in table.groupby("patient")}


def trained(model: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return what ten steps on one patient's rows change of the model."""
    weights = model["weights"].astype(float)
    offset = model["offset"].astype(float)
    for _ in range(10):
        wrong = rows[:, :2] @ weights + offset - rows[:, 2]
        weights = weights - 0.1 * rows[:, :2].T @ wrong / len(rows)
        offset = offset - 0.1 * wrong.mean(keepdims=True)
    return {"weights": weights - model["weights"], "offset": offset - model["offset"]}


def write(folder: Path) -> None:
    """Write the patients and the file of each hospital: effect = 2 dose - age + 0.5 + noise."""
    rng = np.random.default_rng(0)
    for number in range(3):
        x = rng.uniform(-1, 1, (600, 2))
        effect = 2 * x[:, 1] - x[:, 0] + 0.5 + 0.1 * rng.standard_normal(600)
        table = pd.DataFrame({"age": x[:, 0], "dose": x[:, 1], "effect": effect})
        table.insert(0, "patient", [f"{number}-{row // 3:03d}" for row in range(600)])
        table.to_csv(folder / f"hospital-{number}.csv", index=False)
        text = SILO.format(folder=folder, number=number)
        (folder / f"hospital-{number}.toml").write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
