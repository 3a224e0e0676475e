"""What a sweep is: its cells, their keys, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.sweeps import BASE, VARIANTS, small_sweep

from fedmf.errors import ConfigError
from fedmf.runs import run_of
from fedmf.sweeps import SEED_KEYS, Sweep, load_sweep

FILE = """
base = "base.toml"
seeds = [0, 1, 2]
tuning-seeds = [100, 101]

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
    assert len(sweep.cells) == 2 * 2 * 3
    assert len({*map(str, sweep.cells)}) == 12
    assert str(sweep.cells[1]) == "bisr p=2, privacy.epsilon=2, cohorts.rounds=5"
    keys = sweep.keys_of(sweep.cells[4], {"server.learning-rate": 0.4}, 7)
    assert keys == {
        **BASE,
        **VARIANTS["bisr p=2"],
        "privacy.epsilon": 2.0,
        "cohorts.rounds": 10,
        "server.learning-rate": 0.4,
        **dict.fromkeys(("data.seed", "model.seed", "cohorts.seed", "client.seed", "privacy.noise-seed"), 7),
    }


def test_a_seed_is_that_of_the_data_and_all_that_follows_it() -> None:
    sweep = small_sweep()
    run = sweep.run(sweep.cells[0], sweep.candidates[0], 5)
    one = run_of({**sweep.keys_of(sweep.cells[0], sweep.candidates[0], None), "data.seed": 5})
    assert run.difference(one) == "its privacy.noise_seed is 5, not None"
    assert run.privacy.noise_seed == 5


def test_keys_that_a_kind_does_not_have_are_left_out_and_equal_runs_are_one() -> None:
    sweep = small_sweep()
    noiseless = [cell for cell in sweep.cells if cell.variant == "no noise"]
    runs = {sweep.planned(cell, sweep.candidates[0], 0).digest for cell in noiseless}
    assert len(noiseless) == 2
    assert len(runs) == 1
    # 5 different cells with 2 candidates on 2 tuning seeds, and 3 reported seeds
    assert len(sweep.promises) == 5 * (2 * 2 + 3)


def test_a_file_is_the_same_sweep(tmp_path: Path) -> None:
    lines = [f"{name} = {value!r}" for name, value in BASE.items() if name != "cohorts.rounds"]
    (tmp_path / "base.toml").write_text("\n".join(lines).replace("'", '"') + "\ncohorts.rounds = 99\n")
    (tmp_path / "sweep.toml").write_text(FILE)
    assert load_sweep(tmp_path / "sweep.toml").to_dict() == small_sweep().to_dict()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"tuning_seeds": (2, 100)},
            r"tuning_seeds must share none of the reported seeds; got \[2\]",
        ),
        ({"tuning_seeds": ()}, r"tuning_seeds must be 1 or more different ones; got \[\]"),
        ({"tuned": {}}, "tuning_seeds must be left out where nothing is tuned"),
        ({"seeds": (0, 0)}, r"seeds must be 1 or more different ones; got \[0, 0\]"),
        ({"seeds": (-1,)}, r"seeds must be whole numbers in 0\.\.2147483647; got \[-1\]"),
        ({"baseline": "dense"}, "baseline must be the name of a variant .*; got 'dense'"),
        (
            {"grid": {"privacy.epsilno": (1.0, 2.0)}},
            "unknown .*; did you mean 'privacy.epsilon'",
        ),
        ({"grid": {"privacy.epsilon": ()}}, r"\[grid\] privacy.epsilon must list different values"),
        (
            {"grid": {"mechanism.kind": ("bisr",)}},
            "mechanism.kind must be set in one place; .* variant",
        ),
        (
            {"grid": {"server.learning-rate": (1.0,)}},
            "must be set in one place; .* grid and in tuned",
        ),
        (
            {"grid": {"data.seed": (1, 2)}},
            "must be set in one place; .* grid and in seed_keys",
        ),
        (
            {"grid": {"model.embedding": (1, 2)}},
            r"\[grid\] model.embedding must be a key of some cell",
        ),
        (
            {"grid": {"privacy.epsilon": (1.0, -2.0)}},
            "cell identity, .*=-2, .* must lie in",
        ),
        ({"seed_keys": ("task.task-seed",)}, "seed_keys must be keys of cell identity.*; it has none"),
        ({"seed_keys": ()}, "seed_keys must name a key or more"),
        ({"confidence": 1.0}, "confidence must lie strictly between 0 and 1; got 1.0"),
        ({"last": 0}, "last .* must be a whole number ≥ 1; got 0"),
        ({"compare": "quotient"}, "compare must be one of difference, ratio; got 'quotient'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        small_sweep(**changes)
    assert "\n" not in str(refused.value)


def test_a_run_is_a_base_too() -> None:
    run = run_of(BASE)
    assert small_sweep(base=run).promises == small_sweep().promises
    assert (
        Sweep(run, seeds=(3,)).run(Sweep(run, seeds=(3,)).cells[0], {}, 3).participation == run.participation
    )
    assert "privacy.noise-seed" in SEED_KEYS


def test_the_page_and_the_configurations_are_sweeps(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    cells = {file.stem: len(load_sweep(file).cells) for file in (root / "configs/sweeps").glob("*.toml")}
    assert cells == {"mechanisms": 12, "jme-adam": 10}
    (tmp_path / "digits.toml").write_text((root / "configs/digits.toml").read_text())
    (tmp_path / "sub").mkdir()
    blocks = re.findall(r"```toml\n(.*?)```", (root / "docs/sweeps.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    (tmp_path / "sub/sweep.toml").write_text(blocks[0])
    assert load_sweep(tmp_path / "sub/sweep.toml").baseline == "independent noise"
