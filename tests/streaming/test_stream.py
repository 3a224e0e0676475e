"""Whole streams: equal to single steps, users within their contract, invalid rows, restarts."""

from __future__ import annotations

import json
import random
import sqlite3
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.moment_methods import theory
from support.streams import BUDGET, D, N, releases, run_once, sample, write_rows

from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.data.table_reader import InputError
from fedmf.errors import ConfigError, LedgerError
from fedmf.matrices.joint_sensitivity import UserRange
from fedmf.matrices.toeplitz import Toeplitz
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.workload import average
from fedmf.moments import FullMatrix, MomentStream, NoisyMomentSums, jme
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.statements.statement import PrivacyStatement
from fedmf.streaming import (
    Layout,
    Settings,
    StreamPlan,
    StreamRun,
    StreamState,
    account_stream,
    open_run,
)
from fedmf.streaming.output import Output, json_lines
from fedmf.streaming.private_release import Renderer
from fedmf.streaming.state import ReleaseBlock
from fedmf.streaming.stream_rows import RowBlock
from fedmf.version import SOFTWARE


def test_releases_are_those_of_single_steps(tmp_path: Path) -> None:
    """Built here from its parts: one release a row, covariance of `theory.gaussian_estimate`."""
    x = sample()
    settings = Settings(**BUDGET, mechanisms=("banded-toeplitz",), bands=8, objective="rmse")
    run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", x), raw=True)
    part = Participation(N, 1, N)
    work = average(N)
    C = build("banded-toeplitz", part, work, params={"bands": 8}).factorization
    sigma = json.loads((tmp_path / "state/statement.json").read_text())["noise_multiplier"]
    made = jme(C, C, part, UserRange(1.0, D), sigma)
    stream = MomentStream(made, FullMatrix(D), work, key=NoiseKey.from_seed(5))
    variances = theory.mean_noise_variances(stream.mechanism, work)
    found = releases(tmp_path / "out.jsonl")
    assert len(found) == N
    for t, row in enumerate(torch.from_numpy(x), start=1):
        block = stream.release_sum(row[None])
        release = NoisyMomentSums(
            block.t, block.first[0], stream.second_moment.unpack(block.second[0])
        )
        got = found[t - 1]
        assert got["t"] == t
        assert got["sum"] == got["mean"] == release.first.tolist()
        assert got["sum_of_squares"] == release.second.tolist()
        density = theory.gaussian_estimate(release, float(variances[t - 1]))
        np.testing.assert_allclose(
            got["covariance_raw"], density.covariance, rtol=1e-12, atol=1e-12
        )
        assert np.linalg.eigvalsh(got["covariance"]).min() > 0


class Pieces:
    """Rows that come together in random numbers."""

    first_row = 1

    def __init__(self, x: np.ndarray, seed: int) -> None:
        self.layout = Layout(("x0", "x1", "x2"))
        self._x = x
        self._at = 0
        self._rng = random.Random(seed)

    def read(self, most: int) -> RowBlock | None:
        low = self._at
        if low == len(self._x):
            return None
        self._at = min(len(self._x), low + self._rng.randint(1, min(most, 9)))
        return RowBlock(self._x[low : self._at].copy(), None, self._x[low : self._at])

    def skip(self, rows: int) -> int:
        return rows  # none was taken before


class Kept(Output):
    """An output that keeps what it gets."""

    name = "-"

    def __init__(self) -> None:
        self.content = b""

    def write(self, renderer: Renderer, releases: ReleaseBlock) -> None:
        self.content += json_lines(renderer, releases)


@pytest.mark.parametrize(
    "more",
    [
        {
            "workloads": ("exponential:0.9",),
            "second_moment": "diagonal",
            "method": "independent",
            "weight": 0.3,
        },
        {
            "workloads": ("window:3", "prefix"),
            "mechanisms": ("bisr", "identity"),
            "bands": 3,
            "release_every": 4,
        },
        {"method": "post-processing", "second_moment": "1,2", "mechanisms": ("cgd",)},
        {
            "method": "concatenated",
            "second_moment": "trace",
            "adjacency": "replace-one",
            "mechanisms": ("blt",),
        },
    ],
    ids=["independent", "window", "post-processing", "concatenated"],
)
def test_output_does_not_depend_on_what_comes_together(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    x = sample()
    outputs = []
    plan = StreamPlan.of(Settings(**BUDGET, rounds=N, **more), Pieces(x, 0).layout, N)
    for seed in range(3):
        output = Kept()
        with StreamState.create(tmp_path / str(seed), plan, NoiseKey.from_seed(5)) as state:
            if not seed:
                state.plan = plan  # as it was made; the others use what was written down
            run = StreamRun(state, output)
            run.feed(Pieces(x, seed))  # type: ignore[arg-type]
            statement = run.conclude()
        outputs.append(output.content)
    assert outputs[0] == outputs[1] == outputs[2]
    every = more.get("release_every", 1)
    steps = [json.loads(line)["t"] for line in outputs[0].splitlines()]
    assert steps == sorted({*range(every, N + 1, every), N})
    assert statement["sensitivity_kind"] in ("exact", "upper_bound")
    assert statement["epsilon"] == pytest.approx(8.0, rel=1e-9)


@pytest.mark.parametrize(
    "more", [{}, {"release_every": 10, "max_participations": 3}, {"method": "independent"}]
)
def test_a_statement_has_its_sensitivity_in_clip_norms(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """So it does not depend on ζ, and noise_std = ζ·σ·(sensitivity + rounding)."""
    rows = write_rows(tmp_path / "rows.csv", sample(), [f"u{i % 9}" for i in range(N)])
    stated = []
    for clip_norm in (0.5, 4.0):
        changes = {**more, "clip_norm": clip_norm, "user_column": "user"}
        settings = Settings(**{**BUDGET, **changes}, mechanisms=("bisr",))
        folder = tmp_path / str(clip_norm)
        folder.mkdir()
        run_once(folder, settings, rows)
        said = json.loads((folder / "state/statement.json").read_text())
        moved = said["sensitivity"] + said["rounding"]
        noise = said["clip_norm"] * said["noise_multiplier"] * moved
        assert said["noise_std"] == pytest.approx(noise, rel=1e-6)
        stated.append(said["sensitivity"])
    assert stated[0] == pytest.approx(stated[1], rel=1e-9)


def test_given_factorizations_are_streamed_and_resumed(tmp_path: Path) -> None:
    """Objects that no name makes: kept by coefficients, with the releases of the same matrix by
    name.
    """
    x = sample()
    by_name = Settings(**BUDGET, rounds=N, mechanisms=("bsr",), bands=4)
    statement = {}
    source = write_rows(tmp_path / "rows.csv", x)
    outputs = []
    C = build("bsr", Participation(N, 1, N), average(N), params={"bands": 4}).factorization
    given = Settings(**BUDGET, rounds=N, mechanisms=(C,))
    statement: dict[str, Any] = {}
    for name, settings in (("named", by_name), ("given", given)):
        folder = tmp_path / name
        folder.mkdir()
        run_once(folder, settings, write_rows(folder / "part.csv", x[:12]))
        statement = run_once(folder, settings, source)
        outputs.append((folder / "out.jsonl").read_bytes())
    assert outputs[0] == outputs[1]
    assert statement["mechanism"] == "given toeplitz"
    other = Settings(**BUDGET, rounds=N, mechanisms=(Toeplitz(np.array([1.0, 0.25]), N),))
    with pytest.raises(ConfigError, match=r"^mechanisms must be"):
        run_once(tmp_path / "given", other, source)
    layout = Layout(("a", "b"))
    with pytest.raises(ValueError, match=r"C \(mechanism\) must have n = 30 rounds, .*; got 31"):
        StreamPlan.of(Settings(**BUDGET, mechanisms=(identity(N + 1),)), layout, N)
    with pytest.raises(ValueError, match=r"bands \(parameter\) is none of given toeplitz"):
        StreamPlan.of(Settings(**BUDGET, mechanisms=(identity(N),), bands=3), layout, N)


def test_each_moment_gets_the_matrix_of_its_workload() -> None:
    """One name and two workloads are two matrices; one name for one workload is one."""
    layout = Layout(("a", "b"))
    settings = Settings(
        **BUDGET, mechanisms=("banded-toeplitz",), workloads=("prefix", "average"), bands=4
    )
    both = StreamPlan.of(settings, layout, N).mechanism
    alone = StreamPlan.of(replace(settings, workloads=("average",)), layout, N).mechanism
    assert both.second is not None
    assert both.second.to_dict() == alone.first.to_dict() != both.first.to_dict()
    assert alone.second is alone.first


def test_the_record_keeps_its_noise_and_that_must_follow(tmp_path: Path) -> None:
    layout = Layout(("a", "b", "c"))
    settings = Settings(**BUDGET, rounds=N, weight="covariance", adjacency="replace-one")
    description = json.loads(json.dumps(StreamPlan.of(settings, layout, N).to_dict()))
    again = StreamPlan.from_dict(description).to_dict()
    assert json.loads(json.dumps(again)) == description
    for name, factor in (("weight", 1.01), ("first_std", 0.99), ("noise_multiplier", 0.9)):
        altered = {**description, "mechanism": {**description["mechanism"]}}
        altered["mechanism"][name] *= factor
        with pytest.raises(LedgerError, match="The record was altered"):
            StreamPlan.from_dict(altered)


def test_the_statement_says_what_must_stay_secret_and_who_states_it(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.csv", sample(), [f"u{i % 20}" for i in range(N)])
    contract: dict[str, Any] = {
        "user_column": "user",
        "max_participations": 3,
        "min_separation": 10,
    }
    statement = run_once(tmp_path, Settings(**BUDGET, **contract), source)
    written = json.loads((tmp_path / "state/statement.json").read_text())
    assert written == {name: value for name, value in statement.items() if name != "counts"}
    assert written == account_stream(tmp_path / "state")
    assert written["software"] == SOFTWARE
    assert written["noise_key_public"] is True
    assert any("noise.key" in text for text in written["secret"])
    assert written["mu"] == pytest.approx(1 / written["noise_multiplier"], rel=1e-12)
    assert 0 < written["mu_spent"] < written["mu"]
    public = PrivacyStatement(written).public()
    for content in (public.to_json(), public.render_text()):
        assert not any(
            word in content for word in ("spent", "actual_", "participated", "not private")
        )
    assert (tmp_path / "state/statement.txt").read_text() == PrivacyStatement(written).render_text()
    for name in ("statement.json", "statement.txt", "operator.json"):
        assert (tmp_path / "state" / name).stat().st_mode & 0o777 == 0o600


def contract_kept(rows: list[tuple[str, int]], k: int, b: int) -> bool:
    steps: dict[str, list[int]] = {}
    for user, step in rows:
        steps.setdefault(user, []).append(step)
    gaps = (later - sooner for own in steps.values() for sooner, later in pairwise(own))
    return all(gap >= b for gap in gaps) and all(len(own) <= k for own in steps.values())


@pytest.mark.parametrize("seed", range(2))
def test_users_beyond_their_contract_are_left_out(tmp_path: Path, seed: int) -> None:
    """Greedy admission, written out again; who is let in does not depend on what rows hold."""
    rng = random.Random(seed)
    users = [f"u{rng.randint(0, 11)}" for _ in range(60)]
    x = sample(60)
    k = 3
    b = 4
    admitted: list[tuple[str, int]] = []
    beyond_k = within_b = read = 0
    for user in users:
        own = [step for other, step in admitted if other == user]
        step = len(admitted) + 1
        if len(own) < k and (not own or step - own[-1] >= b):
            if step > N:
                break
            admitted.append((user, step))
        else:
            beyond_k = beyond_k + (len(own) >= k)
            within_b = within_b + (len(own) < k)
        read += 1
    assert contract_kept(admitted, k, b)
    assert beyond_k + within_b > 5
    settings = Settings(
        **BUDGET, rounds=N, user_column="user", max_participations=k, min_separation=b, bands=4
    )
    outputs = []
    for name, values in (("a", x), ("b", x[:, ::-1].copy())):
        folder = tmp_path / name
        folder.mkdir()
        got = run_once(folder, settings, write_rows(folder / "rows.csv", values, users))
        assert got["counts"] | {"clipped": 0} == {
            "rows": read,
            "steps": len(admitted),
            "clipped": 0,
            "zeroed": 0,
            "beyond_k": beyond_k,
            "within_b": within_b,
        }
        assert got["actual_max_participations"] <= k
        assert got["actual_min_separation"] >= b
        assert got["epsilon_spent"] <= got["epsilon"]
        outputs.append((folder / "out.jsonl").read_bytes())
    assert outputs[0] != outputs[1]


def test_spent_epsilon_is_that_of_the_recorded_contract(tmp_path: Path) -> None:
    """k = 3 planned and every user seen once: the noise is √3 times what one participation
    needs.
    """
    users = [f"u{i}" for i in range(N)]
    settings = Settings(
        **BUDGET,
        user_column="user",
        max_participations=3,
        min_separation=10,
        mechanisms=("identity",),
    )
    got = run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", sample(), users))
    expected = gaussian_epsilon(got["noise_multiplier"] * 3**0.5, 1e-5)
    assert got["epsilon_spent"] == pytest.approx(expected, rel=1e-6)  # integers cost 1e-7
    assert got["epsilon_spent"] < 0.7 * got["epsilon"]


def write(path: Path, rows: pd.DataFrame) -> Path:
    if path.suffix == ".csv":
        rows.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        rows.to_parquet(path, index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_dict("records")))
    return path


LABELS: dict[str, Any] = {
    **BUDGET,
    "rounds": 12,
    "timestamp": "when",
    "row_id": "id",
    "columns": ("x",),
}


def labeled(path: Path, stop: int, begin: int = 0) -> Path:
    rows = [f"k{i},{x!r},2026-01-{i + 1:02}" for i, x in enumerate(sample(12, 1)[:, 0].tolist())]
    path.write_text("\n".join(["id,x,when", *rows[begin:stop]]) + "\n")
    return path


@pytest.mark.parametrize("output", ["o", "o.parquet"])
def test_a_stream_in_parts_ends_with_the_same_bytes(tmp_path: Path, output: str) -> None:
    """Cut and lost outputs are made again from the state alone, whatever the input still holds;
    labels go with their releases.
    """
    settings = Settings(**LABELS)
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    run_once(whole, settings, labeled(tmp_path / "rows.csv", 12), output)
    for stop in (1, 5, 9):
        run_once(parts, settings, labeled(tmp_path / "part.csv", stop), output)
    text = (parts / output).read_bytes()
    (parts / output).write_bytes(text[: len(text) // 2])
    rest = labeled(tmp_path / "rest.csv", 12, begin=9)
    run_once(parts, settings, rest, output, first_row=10)
    assert (parts / output).read_bytes() == (whole / output).read_bytes()
    (parts / output).unlink()
    run_once(parts, settings, rest, output, first_row=10)
    assert (parts / output).read_bytes() == (whole / output).read_bytes()
    if output == "o":
        assert [(line["row_id"], line["timestamp"]) for line in releases(parts / output)][::4] == [
            ("k0", "2026-01-01"),
            ("k4", "2026-01-05"),
            ("k8", "2026-01-09"),
        ]


def test_other_rows_settings_and_records_are_refused(tmp_path: Path) -> None:
    settings = Settings(**LABELS)
    source = labeled(tmp_path / "rows.csv", 9)
    statement = run_once(tmp_path, settings, source)
    assert [entry["name"] for entry in statement["public_inputs"]] == ["timestamp", "row_id"]
    assert "k4" not in (tmp_path / "state/statement.txt").read_text()
    with pytest.raises(ConfigError, match=r"epsilon must be 8\.0 as when the stream"):
        run_once(tmp_path, replace(settings, epsilon=4.0), source)
    source.write_text(source.read_text().replace("k8,", "k9,"))
    with pytest.raises(InputError, match="must be those that were taken before"):
        run_once(tmp_path, settings, source)
    with pytest.raises(InputError, match="row 10 must come next; the input begins with row 11"):
        run_once(tmp_path, settings, source, first_row=11)
    with pytest.raises(InputError, match="input must have the 9 rows that were taken before"):
        run_once(tmp_path, settings, labeled(source, 5))
    with sqlite3.connect(tmp_path / "state/stream.sqlite") as connection:
        changed = connection.execute(
            "UPDATE commits SET about = replace(about, 'k4', 'k5')"
        ).rowcount
    connection.close()
    assert changed >= 1
    with pytest.raises(LedgerError, match="not as it was written"):
        run_once(tmp_path, settings, labeled(source, 9))


def test_the_next_rows_alone_are_refused_also_after_an_invalid_row(tmp_path: Path) -> None:
    settings = Settings(**LABELS)
    source = labeled(tmp_path / "rows.csv", 6)
    lines = source.read_text().splitlines()
    source.write_text("\n".join([*lines[:-1], "k5,late,2026-01-06"]) + "\n")
    run_once(tmp_path, settings, source)
    with pytest.raises(InputError, match=r"the first 6 rows must be those.*--from-row 7"):
        run_once(tmp_path, settings, labeled(tmp_path / "next.csv", 12, begin=6))
    source.write_text(
        "\n".join([*lines, *(tmp_path / "next.csv").read_text().splitlines()[1:]]) + "\n"
    )
    assert (
        run_once(tmp_path, settings, source)["rounds_released"] == 12
    )  # row 6 may be whole by now


def test_invalid_rows_count_as_zeros(tmp_path: Path) -> None:
    x = 0.3 * sample(8)
    lines = write_rows(tmp_path / "rows.csv", x).read_text().splitlines()
    lines[4] = "0.1,secret,0.2"
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    x[3] = 0.0
    settings = Settings(**BUDGET, rounds=8)
    for name, source in (
        ("bad", tmp_path / "bad.csv"),
        ("zero", write_rows(tmp_path / "zero.csv", x)),
    ):
        (tmp_path / name).mkdir()
        told = run_once(tmp_path / name, settings, source)
        assert told["counts"]["zeroed"] == int(name == "bad")
    assert (tmp_path / "bad/out.jsonl").read_bytes() == (tmp_path / "zero/out.jsonl").read_bytes()


def test_a_release_that_failed_ends_the_process_and_the_next_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_rows(tmp_path / "rows.csv", sample())
    settings = Settings(**BUDGET, columns=("x0",))
    (tmp_path / "plain").mkdir()
    run_once(tmp_path / "plain", settings, source)
    monkeypatch.setattr("fedmf.streaming.stream_run._MOST_ROWS", 7)

    def full(connection: Any) -> None:
        raise OSError(28, "No space left on device")

    place = (tmp_path / "state", settings, source, tmp_path / "out.jsonl")
    with open_run(*place) as (run, reader):
        run.take(reader.read(7))  # type: ignore[arg-type]
        monkeypatch.setattr("fedmf.ledger.ledger._flush", full)
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"No space left.*releases nothing more"):
                run.take(reader.read(7))  # type: ignore[arg-type]
    assert len(releases(tmp_path / "out.jsonl")) == run.position.records > 0
    monkeypatch.undo()
    run_once(tmp_path, settings, source)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "plain/out.jsonl").read_bytes()
