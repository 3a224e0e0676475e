"""Predictions for new rows are those of the released module on rows encoded as in the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.csv as arrow_csv
import pytest
import torch
from data.test_tables import by_schema
from support.small_runs import run_small, small_run

import fedmf
from fedmf.cli.app import run as command
from fedmf.data import Table
from fedmf.runs.prediction import Predictor
from fedmf.runs.tasks import Classification, Regression

NEW = "b,note,a\n10,x,50\n,x,50\n-60,x,20\n"
#: The rows of `NEW` that can be read, as `SCHEMA` of the tables encodes a and b.
ENCODED = torch.tensor([[0.5, 0.2], [-1.0, -1.0]])


def finished(folder: Path, task: type[Any], **options: Any) -> Path:
    columns = {"feature_columns": ("a", "b"), **options}
    data: Table = by_schema(folder, users=8, **columns)
    run = fedmf.Run(
        task=task(data, fedmf.Mlp(hidden_units=(3,))),
        cohorts=fedmf.CyclicCohorts(rounds=2, users_per_round=4),
        privacy=fedmf.UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
        mechanism="identity",
    )
    fedmf.simulate(run, folder / "run", progress=False)
    (folder / "schema.toml").unlink()  # the run directory has a copy
    (folder / "new.csv").write_text(NEW)
    return folder / "run"


def outputs_of(place: Path, outputs: int) -> torch.Tensor:
    module = fedmf.Mlp(hidden_units=(3,)).build((2,), outputs)
    module.load_state_dict(fedmf.load_model(place))
    with torch.no_grad():
        return module(ENCODED).to(torch.float64)


def test_classes_and_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = finished(tmp_path, Classification)
    expected = outputs_of(place, 2)
    table = fedmf.predict(place, tmp_path / "new.csv").to_pydict()
    assert table["row"] == [1, 2, 3]
    words = [("no", "yes")[label] for label in expected.argmax(dim=1).tolist()]
    assert table["prediction"] == [words[0], None, words[1]]
    for label, name in enumerate(("no", "yes")):
        probabilities = [table[f"probability_{name}"][row] for row in (0, 2)]
        assert probabilities == pytest.approx(expected.softmax(dim=1)[:, label].tolist(), rel=1e-6)
        assert table[f"probability_{name}"][1] is None
    capsys.readouterr()
    output = tmp_path / "out.csv"
    arguments = ["predict", str(place), "--input", str(tmp_path / "new.csv")]
    assert command([*arguments, "--output", str(output)]) == 0
    said = capsys.readouterr()
    assert said.err == "2 of 3 rows have a prediction; left out: 1 (b: missing).\n"
    again = arrow_csv.read_csv(output).to_pydict()
    assert again["probability_yes"] == table["probability_yes"]


def test_numbers_are_in_the_units_of_their_column(tmp_path: Path) -> None:
    place = finished(tmp_path, Regression, label_column="a", feature_columns=("b",))
    predicted = Predictor.of(place).of_file(tmp_path / "new.csv")
    module = fedmf.Mlp(hidden_units=(3,)).build((1,), 1)
    module.load_state_dict(fedmf.load_model(place))
    expected = 40 + 20 * module(ENCODED[:, 1:]).reshape(-1)  # center and scale of a
    first, _, last = predicted.table["prediction"].to_pylist()
    assert [first, last] == pytest.approx(expected.tolist(), rel=1e-5)
    assert (predicted.missing, predicted.left_out) == (1, {"b: missing": 1})


def test_a_run_on_other_data_names_the_remedy(tmp_path: Path) -> None:
    run_small(tmp_path / "run", small_run())
    (tmp_path / "new.csv").write_text(NEW)
    with pytest.raises(ValueError, match=r"needs a run with labels .*fedmf\.load_model"):
        fedmf.predict(tmp_path / "run", tmp_path / "new.csv")
