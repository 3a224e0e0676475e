"""A stream as a whole: equal to single steps, users held to their contract, faulty rows."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.streams import BUDGET, D, N, releases, run_once, sample, write_rows

from fedmf.errors import LedgerError
from fedmf.mechanisms.closed_forms import identity
from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.registry import build
from fedmf.mechanisms.toeplitz import Toeplitz
from fedmf.mechanisms.workload import average
from fedmf.moments.density import gaussian_estimate, mean_noise_variances
from fedmf.moments.mechanism import jme
from fedmf.moments.moment_stream import MomentStream
from fedmf.moments.second_moment import FullMatrix
from fedmf.noise.key import NoiseKey
from fedmf.participation import Participation
from fedmf.records import PrivacyStatement
from fedmf.streaming.outputs import Output
from fedmf.streaming.plans import StreamPlan
from fedmf.streaming.rows import InputError, Layout, RowBlock, RowReader, clip_rows
from fedmf.streaming.run import Handling, StreamRun
from fedmf.streaming.session import open_run
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import StreamState
from fedmf.version import SOFTWARE


def test_releases_are_those_of_single_steps(tmp_path: Path) -> None:
    """Built here from its parts: clip, one `update` a row, covariance of `gaussian_estimate`."""
    x = sample()
    run_once(tmp_path, Settings(**BUDGET), write_rows(tmp_path / "rows.csv", x))
    part, work = Participation(N, 1, N), average(N)
    C = build("banded-toeplitz", part, work, bands=min(32, N)).factorization
    made = jme(
        C,
        C,
        part,
        UserRange(1.0, D),
        json.loads((tmp_path / "state/statement.json").read_text())["noise_multiplier"],
    )
    stream = MomentStream(made, FullMatrix(D), work, key=NoiseKey.from_seed(5))
    variances = mean_noise_variances(made, work)
    found = releases(tmp_path / "out.jsonl")
    assert len(found) == N
    for t, row in enumerate(clip_rows(x, 1.0)[0], start=1):
        release = stream.update(torch.from_numpy(row))
        got = found[t - 1]
        assert list(got) == [
            "t", "first", "second", "mean", "covariance", "standard_error", "mean_standard_error",
            "second_standard_error", "covariance_standard_error",
        ]  # fmt: skip
        assert got["t"] == t
        assert got["first"] == got["mean"] == release.first.tolist()
        assert got["second"] == release.second.tolist()
        density = gaussian_estimate(release, float(variances[t - 1]))
        np.testing.assert_allclose(got["covariance"], density.covariance, rtol=1e-12, atol=1e-12)


class Pieces(RowReader):
    """Rows that come together in random numbers."""

    first_row = 1

    def __init__(self, x: np.ndarray, users: list[str] | None, seed: int) -> None:
        self.layout = Layout(("x0", "x1", "x2"), False, D, None if users is None else "user")
        self._x, self._users, self._at, self._rng = x, users, 0, random.Random(seed)

    def read(self, most: int) -> RowBlock | None:
        low = self._at
        if low == len(self._x):
            return None
        self._at = min(len(self._x), low + self._rng.randint(1, min(most, 9)))
        users = None if self._users is None else self._users[low : self._at]
        return RowBlock(low + 1, self._x[low : self._at].copy(), users, {})

    def skip(self, rows: int) -> int:
        before, self._at = self._at, min(len(self._x), self._at + rows)
        return self._at - before

    def where(self, row: int) -> str:
        return f"row {row}"

    def close(self) -> None:
        pass


class Kept(Output):
    """An output that keeps what it gets."""

    takes_lines, name = True, "-"

    def __init__(self) -> None:
        self.content = b""

    def begin(self, written: int) -> bool:
        return True

    def write(self, content: bytes) -> None:
        self.content += content

    def flush(self) -> int:
        return 0

    def finish(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"workloads": ("exponential:0.9",), "second": "diagonal", "method": "ime", "weight": 0.3},
        {"workloads": ("window:7", "prefix"), "mechanisms": ("bisr", "identity"), "bands": 3},
        {"method": "pp", "second": "1,2", "every": 4, "mechanisms": ("cgd",)},
        {"method": "cs", "second": "energy", "adjacency": "replace-one", "mechanisms": ("blt",)},
    ],
    ids=["default", "ime", "window", "pp", "cs"],
)
def test_output_does_not_depend_on_what_comes_together(tmp_path: Path, more: dict[str, Any]) -> None:
    x, outputs = sample(), []
    plan = StreamPlan.of(Settings(**BUDGET, rounds=N, **more), Pieces(x, None, 0).layout, N)
    for seed in range(3):
        output: Any = Kept()
        with StreamState.create(tmp_path / str(seed), plan, NoiseKey.from_seed(5)) as state:
            if not seed:
                state.plan = plan  # as it was made; the others use what was written down
            run = StreamRun(state, output)
            run.feed(Pieces(x, None, seed))
            statement = run.conclude()
        outputs.append(output.content)
    assert outputs[0] == outputs[1] == outputs[2]
    steps = [json.loads(line)["t"] for line in outputs[0].splitlines()]
    every = more.get("every", 1)
    assert steps == sorted({*range(every, N + 1, every), N})
    assert statement["sensitivity_kind"] in ("exact", "upper_bound")
    assert statement["epsilon"] == pytest.approx(8.0, rel=1e-9)


def test_given_factorizations_are_streamed_and_resumed(tmp_path: Path) -> None:
    """Objects that no name makes: kept by coefficients, with the releases of the same matrix by name."""
    x = sample()
    by_name = Settings(**BUDGET, rounds=N, mechanisms=("bsr",), bands=4)
    source = write_rows(tmp_path / "rows.csv", x)
    outputs, statements = [], []
    C = build("bsr", Participation(N, 1, N), average(N), bands=4).factorization
    given = Settings(**BUDGET, rounds=N, mechanisms=(C,))
    for name, settings in (("named", by_name), ("given", given), ("both", replace(given, mechanisms=(C, C)))):
        folder = tmp_path / name
        folder.mkdir()
        run_once(folder, settings, write_rows(folder / "part.csv", x[:12]))
        statements.append(run_once(folder, settings, source))
        outputs.append((folder / "out.jsonl").read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]
    assert [s["mechanism"] for s in statements] == ["bsr", "given toeplitz", "given toeplitz"]
    seconds = [s["second_moment"]["mechanism"] for s in statements]
    assert seconds == ["bsr", "given toeplitz", "given toeplitz"]
    assert statements[0]["sensitivity"] == statements[1]["sensitivity"]
    other = Toeplitz([1.0, 0.25], N)
    with pytest.raises(LedgerError, match=r"^mechanisms must be"):
        run_once(tmp_path / "given", Settings(**BUDGET, rounds=N, mechanisms=(other,)), source)
    pair = tmp_path / "pair"
    pair.mkdir()
    mixed = Settings(**BUDGET, rounds=N, mechanisms=(other, "bsr"), bands=4, workloads=("prefix",))
    statement = run_once(pair, mixed, source)
    assert (statement["mechanism"], statement["second_moment"]["mechanism"]) == ("given toeplitz", "bsr")
    assert (statement["params"], statement["second_moment"]["params"]) == ({}, {"bands": 4})


def test_each_moment_gets_the_matrix_of_its_workload() -> None:
    """One name and two workloads are two matrices; one name, or one object, for one workload is one."""
    layout = Layout(("a", "b"), False, 2, None)
    settings = Settings(**BUDGET, mechanisms=("banded-toeplitz",), workloads=("prefix", "average"), bands=4)
    both = StreamPlan.of(settings, layout, N).mechanism
    alone = StreamPlan.of(replace(settings, workloads=("average",)), layout, N).mechanism
    assert both.second is not None
    assert both.second.to_dict() == alone.first.to_dict() != both.first.to_dict()
    assert alone.second is alone.first
    given = StreamPlan.of(replace(settings, mechanisms=(identity(N),), bands=None), layout, N).mechanism
    assert given.second is given.first


def test_a_given_factorization_must_fit(tmp_path: Path) -> None:
    layout = Layout(("a", "b"), False, 2, None)
    with pytest.raises(ValueError, match=r"C \(mechanism\) must have n = 30 rounds, .*; got 31"):
        StreamPlan.of(Settings(**BUDGET, mechanisms=(identity(N + 1),)), layout, N)
    with pytest.raises(ValueError, match=r"bands \(parameter\) is none of given toeplitz"):
        StreamPlan.of(Settings(**BUDGET, mechanisms=(identity(N),), bands=3), layout, N)


def test_the_statement_says_what_must_stay_secret_and_who_states_it(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.csv", sample(), [f"u{i % 20}" for i in range(N)])
    contract: dict[str, Any] = {"user_column": "user", "max_participations": 3, "min_separation": 10}
    statement = run_once(tmp_path, Settings(**BUDGET, **contract), source)
    written = json.loads((tmp_path / "state/statement.json").read_text())
    assert written == {name: value for name, value in statement.items() if name != "counts"}
    assert written["software"] == SOFTWARE
    assert written["noise_key_public"] is True
    assert any("noise.key" in text for text in written["secret"])
    assert written["mu"] == pytest.approx(1 / written["noise_multiplier"], rel=1e-12)
    assert 0 < written["mu_spent"] < written["mu"]
    public = PrivacyStatement(written).public()
    assert public["epsilon"] == written["epsilon"]
    for content in (public.to_json(), public.render_text()):
        assert not any(word in content for word in ("spent", "actual_", "participated", "not private"))
    text = (tmp_path / "state/statement.txt").read_text()
    assert text == PrivacyStatement(written).render_text()
    for part in ("mu = ", SOFTWARE, "Must stay secret:", *written["secret"]):
        assert part in text
    for name in ("statement.json", "statement.txt", "operator.json"):
        assert (tmp_path / "state" / name).stat().st_mode & 0o777 == 0o600


def contract_kept(rows: list[tuple[str, int]], k: int, b: int) -> bool:
    steps: dict[str, list[int]] = {}
    for user, step in rows:
        steps.setdefault(user, []).append(step)
    gaps = (later - sooner for own in steps.values() for sooner, later in pairwise(own))
    return all(gap >= b for gap in gaps) and all(len(own) <= k for own in steps.values())


@pytest.mark.parametrize("seed", range(3))
def test_users_beyond_their_contract_are_refused(tmp_path: Path, seed: int) -> None:
    """Greedy admission, written out again; who is let in does not depend on what rows hold."""
    rng = random.Random(seed)
    users = [f"u{rng.randint(0, 11)}" for _ in range(60)]
    x, k, b = sample(60), 3, 4
    admitted: list[tuple[str, int]] = []
    indices, late = [], 0
    for i, user in enumerate(users):
        own = [step for other, step in admitted if other == user]
        step = len(admitted) + 1
        if step > N:
            late += 1
        elif len(own) < k and (not own or step - own[-1] >= b):
            admitted.append((user, step))
            indices.append(i)
    assert contract_kept(admitted, k, b)
    refused = 60 - late - len(admitted)
    assert refused > 5
    settings = Settings(
        **BUDGET, rounds=N, user_column="user", max_participations=k, min_separation=b, bands=4
    )
    outputs = []
    for name, values in (("a", x), ("b", x[:, ::-1].copy())):
        folder = tmp_path / name
        folder.mkdir()
        got = run_once(folder, settings, write_rows(folder / "rows.csv", values, users))
        assert got["counts"] | {"clipped": 0} == {
            "rows": 60, "steps": len(admitted), "clipped": 0, "zeroed": 0, "refused_users": refused,
            "refused_late": late,
        }  # fmt: skip
        assert got["actual_max_participations"] <= k
        assert got["actual_min_separation"] >= b
        assert got["epsilon_spent"] <= got["epsilon"]
        outputs.append((folder / "out.jsonl").read_bytes())
    assert outputs[0] != outputs[1]
    # The same as a stream of the admitted rows alone, without names.
    folder = tmp_path / "c"
    folder.mkdir()
    alone = Settings(**BUDGET, rounds=N, max_participations=k, min_separation=b, bands=4)
    run_once(folder, alone, write_rows(folder / "rows.csv", x[indices]))
    assert (folder / "out.jsonl").read_bytes() == outputs[0]


def test_realised_epsilon_is_that_of_the_recorded_contract(tmp_path: Path) -> None:
    """k = 3 planned and every user seen once: the noise is √3 times what one participation needs."""
    users = [f"u{i}" for i in range(N)]
    settings = Settings(
        **BUDGET, user_column="user", max_participations=3, min_separation=10, mechanisms=("identity",)
    )
    got = run_once(tmp_path, settings, write_rows(tmp_path / "rows.csv", sample(), users))
    from fedmf.accounting.gaussian.calibration import gaussian_epsilon

    expected = gaussian_epsilon(got["noise_multiplier"] * 3**0.5, 1e-5)
    assert got["epsilon_spent"] == pytest.approx(expected, rel=1e-9)
    assert got["epsilon_spent"] < 0.7 * got["epsilon"]


def test_faulty_rows_stop_the_stream_or_count_as_zeros(tmp_path: Path) -> None:
    x = sample() * 0.1
    source = write_rows(tmp_path / "rows.csv", x)
    good = source.read_text()
    lines = good.splitlines()
    lines[18] = "0.1,nan,0.1"
    source.write_text("\n".join(lines) + "\n")
    settings = Settings(**BUDGET, rounds=N)
    with pytest.raises(InputError, match=r"^row 18 \(line 19\) column 'x1' must be finite"):
        run_once(tmp_path, settings, source, handling=Handling(stop_at_faulty=True))
    assert len(releases(tmp_path / "out.jsonl")) == 17
    # Mended, the stream ends as if nothing had been.
    source.write_text(good)
    run_once(tmp_path, settings, source)
    mended = (tmp_path / "out.jsonl").read_bytes()
    for name, values in (("whole", x), ("zero", np.where(np.arange(N)[:, None] == 17, 0.0, x))):
        folder = tmp_path / name
        folder.mkdir()
        run_once(folder, settings, write_rows(folder / "rows.csv", values))
    assert (tmp_path / "whole/out.jsonl").read_bytes() == mended
    # Not stopping, it takes its step as a zero vector: later rows keep their places whatever a row holds.
    source.write_text("\n".join(lines) + "\n")
    folder = tmp_path / "left out"
    folder.mkdir()
    got = run_once(folder, settings, source, handling=Handling())
    assert got["counts"]["zeroed"] == 1
    assert "zeroed" not in got
    assert (folder / "out.jsonl").read_bytes() == (tmp_path / "zero/out.jsonl").read_bytes()
    # A stream that went past a faulty row can go on with the same input.
    assert run_once(folder, settings, source)["rounds_released"] == N


def test_long_rows_are_refused_on_request(tmp_path: Path) -> None:
    x = sample() * 0.1
    x[4] = 9.0
    source = write_rows(tmp_path / "rows.csv", x)
    with pytest.raises(InputError, match=r"row 5 \(line 6\) must not be longer than the norm bound"):
        run_once(tmp_path, Settings(**BUDGET), source, handling=Handling(clip=False, stop_at_faulty=True))
    got = run_once(tmp_path, Settings(**BUDGET), source)
    assert got["counts"]["clipped"] == 1


@pytest.mark.parametrize("count_late", [False, True])
def test_rows_beyond_the_horizon_are_read_only_to_count_them(
    count_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input that never ends, a pipe say, is left where the last step was taken."""
    monkeypatch.setattr(StreamRun, "most_rows", 4)
    source = write_rows(tmp_path / "rows.csv", sample(16))
    with open_run(tmp_path / "state", Settings(**BUDGET, rounds=8), source, tmp_path / "out") as (
        run,
        reader,
    ):
        run.feed(reader, count_late=count_late)
        assert (run.position.step, run.position.refused_late) == (8, 8 if count_late else 0)
