"""Sweeps as values: cells, their keys, invalid sweeps, and the privacy of all runs."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from scipy.stats import norm
from support.sweeps import BASE, VARIANTS, small_sweep

from fedmf.accounting.gaussian import gaussian_sigma
from fedmf.errors import ConfigError
from fedmf.runs.tables.configuration import run_of
from fedmf.sweeps import Sweep, privacy_together

FILE = """
base = "base.toml"
seeds = [0, 1]
tuning-seeds = [100]
[set]
cohorts.rounds = 10
[variants]
identity = { mechanism.kind = "identity" }
"bisr p=2" = { mechanism.kind = "bisr", mechanism.bands = 2 }
"no noise" = { privacy.kind = "none", mechanism.kind = "identity" }
[grid]
privacy.epsilon = [2.0, 8.0]
[tuned]
server.learning-rate = [0.1, 0.4]
"""


def test_cells_are_variants_at_points_of_the_grid() -> None:
    sweep = small_sweep(grid={"privacy.epsilon": (2.0, 8.0), "cohorts.rounds": (5, 10)})
    assert len({*map(str, sweep.cells)}) == 12
    assert str(sweep.cells[1]) == "bisr p=2, privacy.epsilon=2, cohorts.rounds=5"
    keys = sweep.keys_of(sweep.cells[4], {"server.learning-rate": 0.4}, 7)
    assert keys == {
        **BASE,
        **VARIANTS["bisr p=2"],
        "privacy.epsilon": 2.0,
        "cohorts.rounds": 10,
        "server.learning-rate": 0.4,
        **dict.fromkeys(("data.seed", "privacy.noise-seed"), 7),
    }


def test_a_base_of_another_type_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^base \(of a sweep\) must be .*; got 5\.$"):
        Sweep(5, seeds=(0,))  # type: ignore[arg-type]


def test_keys_of_tuning_go_over_those_of_tuning_seeds_alone() -> None:
    sweep = small_sweep(tuning_set={"data": {"seed": 9, "users": 33}})
    for seed, users in ((0, sweep.base["data.users"]), (100, 33)):  # type: ignore[index]
        assert sweep.keys_of(sweep.cells[0], sweep.candidates[0], seed)["data.users"] == users
    with pytest.raises(ConfigError, match=r"did you mean 'data\.users'"):
        small_sweep(tuning_set={"data.usres": 3})


def test_keys_that_a_kind_does_not_have_are_left_out_and_equal_runs_are_one() -> None:
    sweep = small_sweep()
    noiseless = [cell for cell in sweep.cells if cell.variant == "no noise"]
    assert len(noiseless) == 2
    assert len({sweep.planned(cell, sweep.candidates[0], 0).digest for cell in noiseless}) == 1
    # 5 different cells with 2 candidates on a tuning seed, and 2 reported seeds
    assert len(sweep.promises) == 5 * (2 * 1 + 2)
    assert small_sweep(base=run_of(BASE)).promises == sweep.promises


def test_a_file_is_the_same_sweep_and_set_goes_over_its_base(tmp_path: Path) -> None:
    lines = [f"{name} = {value!r}" for name, value in BASE.items() if name != "cohorts.rounds"]
    (tmp_path / "base.toml").write_text(
        "\n".join(lines).replace("'", '"') + "\ncohorts.rounds = 99\n"
    )
    (tmp_path / "sweep.toml").write_text(FILE)
    assert Sweep.from_config(tmp_path / "sweep.toml") == small_sweep()
    other = Sweep.from_config(tmp_path / "sweep.toml", {"cohorts.rounds": 20, "seeds": [5]})
    assert (other.base["cohorts.rounds"], other.seeds) == (20, (5,))  # type: ignore[index]
    point = {"privacy.epsilon": 8.0, "server.learning-rate": 0.5}
    part = Sweep.from_config(tmp_path / "sweep.toml", point, ["bisr p=2"])
    assert [cell.variant for cell in part.cells] == ["identity", "bisr p=2"]
    assert (part.grid, part.tuned) == (
        {"privacy.epsilon": (8.0,)},
        {"server.learning-rate": (0.5,)},
    )
    with pytest.raises(ConfigError, match="variant must be one of the sweep's"):
        Sweep.from_config(tmp_path / "sweep.toml", point, ["bisr p=3"])
    for name, said in {"sedes": "did you mean 'seeds'", "grid": "as documented"}.items():
        with pytest.raises(ConfigError, match=said):
            Sweep.from_config(tmp_path / "sweep.toml", {name: 3})


def test_the_page_and_the_configurations_are_sweeps(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    files = (root / "configs/sweeps").glob("*.toml")
    assert {file.stem: len(Sweep.from_config(file).cells) for file in files} == {
        "mechanisms": 16,
        "jme-adam": 10,
    }
    (tmp_path / "digits.toml").write_text((root / "configs/digits.toml").read_text())
    (tmp_path / "sub").mkdir()
    page = (root / "docs/simulations.md").read_text()
    (block,) = [
        block
        for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
        if "[variants]" in block
    ]
    (tmp_path / "sub/sweep.toml").write_text(block)
    assert Sweep.from_config(tmp_path / "sub/sweep.toml").baseline == "independent noise"


def test_tuning_runs_count_towards_the_epsilon_of_a_sweep() -> None:
    """Two tuning and two reported runs of one cell cost √4 times the μ of one."""
    one = {
        "variants": {"identity": {"mechanism.kind": "identity"}},
        "grid": {},
        "tuning_seeds": (100,),
    }
    most = 1 / gaussian_sigma(8.0, 1e-5)
    least = 1 / gaussian_sigma(1.0, 1e-5)
    tuned = {"tuned": {"privacy.epsilon": (1.0, 8.0)}}  # what is chosen may be the most expensive
    for more, mu in (({}, 2 * most), (tuned, math.hypot(least, math.sqrt(3) * most))):
        said = privacy_together(small_sweep(**one, **more, base={}))
        epsilon = float(said[1:].split(",")[0])
        exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert exact == pytest.approx(1e-5, rel=1e-3)
        assert exact <= 1e-5
        assert "for all 4 runs" in said
    for base, told in (
        ({"privacy.kind": "none"}, "none: 4 of 4 runs add no noise"),
        (
            {"privacy.amplified": True, "cohorts.kind": "balls-in-bins"},
            "amplified; the noise of a sweep",
        ),
    ):
        assert told in privacy_together(small_sweep(**one, base=base))
