"""A release proves itself: `simulations/verify.py` accepts what is honest, and sees each lie."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.streams import releases, run_once, sample, write_rows

import fedmf
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.data import read_schema
from fedmf.errors import LedgerError
from fedmf.ledger.released_integers import FOLDER, INTEGERS, PLAN, ReleasedIntegers
from fedmf.runs.released_model import ReleasedModel, write_tensors
from fedmf.runs.run_statement import account
from fedmf.runs.simulation import run_in_process
from fedmf.streaming import Settings, account_stream
from guarantees.small import bisr, patterns, random_rows, run_of
from guarantees.small import stream as pushed

SCRIPT = Path(__file__).parents[2] / "simulations/verify.py"
DIMENSION = 5
KEPT = fedmf.Execution(keep_releases=True)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def publish(place: Path, statement: Any) -> Path:
    """The public statement next to the folder of the run or stream."""
    path = place.with_suffix(".json")
    path.write_text(statement.public().to_json())
    return path


def private_run(place: Path, **changes: Any) -> list[Path]:
    """What a third party has of a run: statement, folder, model."""
    run = run_of(random_rows(DIMENSION), execution=KEPT, **changes)
    with fedmf.start(run, place) as session:
        run_in_process(session)
    model = place.with_suffix(".safetensors")
    released = ReleasedModel.of(place)
    write_tensors(model, released.tensors, {"rounds": str(released.rounds)})
    return [publish(place, account(place)), place / FOLDER, model]


def private_stream(place: Path, users: bool = True, **changes: Any) -> list[Path]:
    """What a third party has of a stream: statement, folder, output."""
    place.mkdir()
    names = [f"u{i % 10}" for i in range(30)] if users else None
    more = {"user_column": "user", "max_participations": 3} if users else {}
    values = {"clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-5, "keep_releases": True}
    settings = Settings(**{**values, **more, **changes})
    rows = write_rows(place / "rows.csv", sample(), names)
    run_once(place, settings, rows, raw=True)
    state = place / "state"
    return [publish(place, account_stream(state)), state / FOLDER, place / "out.jsonl"]


SGD = fedmf.Sgd(learning_rate=0.7, momentum=0.9, schedule="cosine", warmup=3, weight_decay=0.05)
RUNS: dict[str, dict[str, Any]] = {
    "banded inverse": {"server": SGD},
    "banded": {"mechanism": "banded-toeplitz", "server": fedmf.Sgd(schedule="linear")},
    "buffers": {"mechanism": "blt"},
    "dense": {"mechanism": "dense"},
    "column norms": {"mechanism": "normalized-banded"},
    "moving clip norm": {"clipping": fedmf.QuantileClipping(rounds_per_update=2), "server": SGD},
    "steps": {"clipping": fedmf.QuantileClipping(rounds_per_update=3, normalize_updates=True)},
    "secret key": {"privacy": fedmf.UserLevel(epsilon=2.0, delta=1e-5, clip_norm=0.5)},
    "replace one": {
        "privacy": fedmf.UserLevel(
            epsilon=2.0, delta=1e-5, clip_norm=0.5, noise_seed=3, adjacency="replace-one"
        )
    },
}
STREAMS: dict[str, dict[str, Any]] = {
    "average": {},
    "blocks": {"release_every": 4, "mechanisms": ("bisr",)},
    "replace one": {"adjacency": "replace-one", "second_moment": "diagonal"},
    "window": {"workloads": ("window:5",), "method": "independent"},
    "rows": {"users": False, "workloads": ("exponential:0.8",), "method": "concatenated"},
}


@pytest.mark.parametrize("what", RUNS)
def test_an_honest_run_is_accepted(what: str, script: ModuleType, tmp_path: Path) -> None:
    statement, folder, model = private_run(tmp_path / "run", **RUNS[what])
    script.verify(statement, folder, [model])


@pytest.mark.parametrize("what", STREAMS)
def test_an_honest_stream_is_accepted(what: str, script: ModuleType, tmp_path: Path) -> None:
    statement, folder, output = private_stream(tmp_path / "stream", **STREAMS[what])
    script.verify(statement, folder, [output])


def test_a_stream_that_counts_valid_rows_is_accepted(script: ModuleType, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    columns = [
        f'[columns.x{i}]\nkind = "number"\nlower = -3\nupper = 2\nnullable = true\n'
        for i in range(3)
    ]
    schema.write_text("".join(columns) + '[columns.user]\nkind = "user"\n')
    more = {"schema": read_schema(schema), "clip_norm": math.nan, "epsilon": 1e5}
    statement, folder, output = private_stream(tmp_path / "stream", **more)
    assert "valid_share" in releases(output)[0]
    script.verify(statement, folder, [output])


def test_the_statement_of_a_pair_is_checked_without_models(
    script: ModuleType, tmp_path: Path
) -> None:
    """Both moments of JME-Adam; its models are left to others, and that is said."""
    statement, folder, model = private_run(tmp_path / "run", server=fedmf.JmeAdam())
    script.verify(statement, folder, [])
    with pytest.raises(script.Unchecked, match="models of the optimizer jme-adam"):
        script.verify(statement, folder, [model])


def with_digests(statement: Path, folder: Path) -> None:
    """Let a statement name the files as they are now."""
    files = {}
    for file in folder.iterdir():
        files[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    edited(statement, lambda said: said.update(released_files=files))


def edited(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def less_noise(statement: Path, folder: Path, published: Path) -> None:
    """τ is nine tenths of what ε needs, in every file that says so."""

    def change(plan: Any) -> None:
        for part in plan["parts"]:
            part["std"] *= 0.9

    edited(folder / PLAN, change)
    edited(statement, lambda said: said.update(noise_std=0.9 * said["noise_std"]))


def less_epsilon(statement: Path, folder: Path, published: Path) -> None:
    edited(
        statement,
        lambda said: said.update(epsilon_known_cohorts=0.999 * said["epsilon_known_cohorts"]),
    )


def other_coefficients(scale: float) -> Callable[[Path, Path, Path], None]:
    """C with other coefficients after the first, larger or smaller, so that sens(C) is another
    one.
    """

    def change(plan: Any) -> None:
        for part in plan["parts"]:
            coefficients = part["strategy"]["coefficients"]
            part["strategy"]["coefficients"] = [
                coefficients[0],
                *(scale * c for c in coefficients[1:]),
            ]

    return lambda statement, folder, published: edited(folder / PLAN, change)


def other_integers(statement: Path, folder: Path, published: Path) -> None:
    """One of the integers is off by a hundredth of its noise."""
    std = json.loads((folder / PLAN).read_text())["parts"][0]["std"]
    integers = np.fromfile(folder / INTEGERS, "<i8")
    integers[1] += round(std / 100)
    integers.tofile(folder / INTEGERS)


def fewer_integers(statement: Path, folder: Path, published: Path) -> None:
    content = (folder / INTEGERS).read_bytes()
    (folder / INTEGERS).write_bytes(content[:-8])


def other_model(statement: Path, folder: Path, published: Path) -> None:
    tensors = safetensors.numpy.load_file(published)
    tensors["weight"][0, 2] += 0.01 * np.abs(tensors["weight"]).max()
    published.write_bytes(safetensors.numpy.save(tensors, {"rounds": "12"}))


def other_value(name: str) -> Callable[[Path, Path, Path], None]:
    def change(statement: Path, folder: Path, published: Path) -> None:
        lines = [json.loads(line) for line in published.read_text().splitlines()]
        values = np.array(lines[7][name])
        values.reshape(-1)[1] += 1e-4 * np.abs(values).max()
        lines[7][name] = values.tolist()
        published.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return change


def more_participations(statement: Path, folder: Path, published: Path) -> None:
    """The contract lets users take part more often than the noise was made for."""
    edited(statement, lambda said: said.update(min_separation=1, max_participations=8))


def larger(name: str, factor: float) -> Callable[[Path, Path, Path], None]:
    """A number of the statement alone is another one."""
    return lambda statement, folder, published: edited(
        statement, lambda said: said.update({name: factor * said[name]})
    )


Lie = Callable[[Path, Path, Path], None]
LIES: dict[str, Lie] = {
    "tau too small": less_noise,
    "epsilon too small": less_epsilon,
    "larger C": other_coefficients(1.05),
    "altered integers": other_integers,
    "missing integers": fewer_integers,
    "more participations": more_participations,
    "another clip norm": larger("clip_norm", 2.0),
    "more noise than there is": larger("noise_std", 1.0001),
    "another sensitivity": larger("sensitivity", 1.0001),
}
OF_RUNS: dict[str, Lie] = {
    **LIES,
    "smaller C": other_coefficients(0.95),
    "altered model": other_model,
}
OF_STREAMS: dict[str, Lie] = {
    **LIES,
    "smaller C": other_coefficients(0.95),
    "altered mean": other_value("mean"),
    "altered covariance": other_value("covariance"),
    "altered raw covariance": other_value("covariance_raw"),
}


def stated(**values: Any) -> Lie:
    """The statement alone says something else."""
    return lambda statement, folder, published: edited(statement, lambda said: said.update(values))


def amplified(statement: Path, folder: Path, published: Path) -> None:
    stated(amplification={"kind": "poisson"}, epsilon=1.0)(statement, folder, published)


def tensor_of_private_numbers(statement: Path, folder: Path, published: Path) -> None:
    tensors = safetensors.numpy.load_file(published)
    tensors["private"] = np.arange(300.0)
    published.write_bytes(safetensors.numpy.save(tensors, {"rounds": "12"}))


def constants_of_private_numbers(statement: Path, folder: Path, published: Path) -> None:
    """As above, but the statement has frozen parameters, whose values no public file holds."""
    frozen = {"name": "frozen parameters and buffers"}
    edited(statement, lambda said: said["public_inputs"].append(frozen))
    tensor_of_private_numbers(statement, folder, published)


def field_of(name: str, other: str) -> Lie:
    """Another name of a field."""

    def change(statement: Path, folder: Path, published: Path) -> None:
        content = published.read_text()
        published.write_text(content.replace(json.dumps(name) + ":", json.dumps(other) + ":"))

    return change


def added_field(statement: Path, folder: Path, published: Path) -> None:
    published.write_text(published.read_text().replace('{"t"', '{"true_mean": [0.1], "t"'))


def lines_of(first: int, last: int, then: str = "") -> Lie:
    def change(statement: Path, folder: Path, published: Path) -> None:
        lines = published.read_text().splitlines(keepends=True)
        published.write_text("".join(lines[first:last]) + then)

    return change


def noise_in_two_rounds(statement: Path, folder: Path, published: Path) -> None:
    """Ten of twelve rounds have hardly any noise; the others have more of it than all need."""
    columns = json.loads((folder / PLAN).read_text())["parts"][0]["strategy"]["coefficients"]
    C = sum(np.diag(np.full(12 - lag, c), -lag) for lag, c in enumerate(columns))
    noise = C @ np.fromfile(folder / INTEGERS, "<i8").reshape(12, DIMENSION)
    noise *= np.repeat([1e-6, 100.0], [10, 2])[:, None]
    np.rint(np.linalg.solve(C, noise)).astype("<i8").tofile(folder / INTEGERS)


def twice_the_rounds(statement: Path, folder: Path, published: Path) -> None:
    content = (folder / INTEGERS).read_bytes()
    (folder / INTEGERS).write_bytes(2 * content)
    edited(statement, lambda said: said.update(rounds_released=2 * said["rounds_released"]))


def larger_data(factor: int) -> Lie:
    def change(statement: Path, folder: Path, published: Path) -> None:
        (factor * np.fromfile(folder / INTEGERS, "<i8")).tofile(folder / INTEGERS)
        published.unlink()

    return change


def smaller_bound(statement: Path, folder: Path, published: Path) -> None:
    """A user's vector is said to have half of its norm, so that mu is half as large."""
    edited(folder / PLAN, lambda plan: plan["parts"][0].update(bound=0.5))

    def change(said: Any) -> None:
        said.update(noise_std=2 * said["noise_std"], mu=said["mu"] / 2)
        said.update(noise_multiplier=1 / said["mu"])

    edited(statement, change)


def half_of_the_rounds(statement: Path, folder: Path, published: Path) -> None:
    """A run that says that its releases are blocks of two rounds."""
    content = (folder / INTEGERS).read_bytes()
    (folder / INTEGERS).write_bytes(content[: len(content) // 2])
    stated(release_every=2)(statement, folder, published)


def few_users(statement: Path, folder: Path, published: Path) -> None:
    """24 users cannot fill 12 rounds of 6 users with two participations each."""
    stated(max_participations=2)(statement, folder, published)


def other_last_digit(statement: Path, folder: Path, published: Path) -> None:
    tensors = safetensors.numpy.load_file(published)
    tensors["weight"][0, 2] = np.nextafter(tensors["weight"][0, 2], np.float32(1))
    published.write_bytes(safetensors.numpy.save(tensors, {"rounds": "12"}))


def metadata(statement: Path, folder: Path, published: Path) -> None:
    tensors = safetensors.numpy.load_file(published)
    about = {"rounds": "12", "note": "user 17"}
    published.write_bytes(safetensors.numpy.save(tensors, about))


def file_in_released(statement: Path, folder: Path, published: Path) -> None:
    (folder / "exact.bin").write_bytes(b"private")


def key_twice(statement: Path, folder: Path, published: Path) -> None:
    published.write_text(published.read_text().replace('{"t"', '{"t": 1, "t"', 1))


def key_of_plan_twice(statement: Path, folder: Path, published: Path) -> None:
    text = (folder / PLAN).read_text()
    (folder / PLAN).write_text(text.replace("{", '{"kind": "stream",', 1))


def not_a_number(statement: Path, folder: Path, published: Path) -> None:
    stated(epsilon=math.nan)(statement, folder, published)


def second_std(statement: Path, folder: Path, published: Path) -> None:
    edited(statement, lambda said: said["second_moment"].update(noise_std=1e9))


def upper_bound(statement: Path, folder: Path, published: Path) -> None:
    stated(sensitivity=0.1, sensitivity_kind="upper_bound")(statement, folder, published)


def key_of_seed_7(statement: Path, folder: Path, published: Path) -> None:
    """The run has the public seed 7, and says that its key is secret."""
    stated(noise_key_public=False)(statement, folder, published)


def nothing(statement: Path, folder: Path, published: Path) -> None:
    """No lie."""


#: What is wrong, where, the lie, the exit status, and what the program says.
OF_OPERATORS: dict[str, tuple[str, Lie, int, str]] = {
    "epsilon": ("run", stated(epsilon=1.0), 1, "epsilon is not epsilon_known_cohorts"),
    "amplified": ("run", amplified, 2, "epsilon 1.0 against those who do not know"),
    "multiplier": ("run", stated(noise_multiplier=5.0), 1, "noise_multiplier is not 1/mu"),
    "mu": ("run", stated(mu=0.2, noise_multiplier=5.0), 1, "the stated mu is 0.2"),
    "bound": ("run", smaller_bound, 1, "bound of updates is another one"),
    "blocks of a run": ("run", half_of_the_rounds, 1, "release_every in the statement of a run"),
    "no participation": ("run", stated(max_participations=0), 1, "max_participations is not a"),
    "true": ("run", stated(min_separation=True), 1, "min_separation is not a positive integer"),
    "few users": ("run", few_users, 1, "24 users are too few for 12 rounds of 6 users"),
    "few apart": ("run", stated(min_separation=5), 1, "24 users are too few for 12 rounds of"),
    "k and b": ("run", stated(max_participations=4), 1, "do not fit in 12 rounds"),
    "last digit": ("run", other_last_digit, 2, "the last digits of"),
    "metadata": ("run", metadata, 0, "is 'user 17'"),
    "more files": ("run", file_in_released, 0, "exact.bin"),
    "no assumptions": ("run", stated(assumptions=[]), 1, "the statement has no assumptions"),
    "more fields": ("run", stated(certified=0.1), 0, "assumptions, certified, dimension"),
    "other copy": ("run", stated(this_copy="saw 40 commits"), 0, "NOT THE WHOLE RUN: saw 40"),
    "upper bound": ("run", upper_bound, 1, "the sensitivity of this C is"),
    "text": ("run", stated(epsilon="1"), 1, "a file is missing or damaged: TypeError"),
    "not a number": ("run", not_a_number, 1, "JSON holds the number NaN"),
    "key twice": ("run", key_of_plan_twice, 1, "a key stands twice"),
    "key of a line twice": ("stream", key_twice, 1, "a key stands twice"),
    "seed": ("run", key_of_seed_7, 1, "the key is that of the public seed 7"),
    "sensitivity": ("stream", stated(sensitivity=0.1), 1, "the sensitivity of this C is"),
    "second noise": ("stream", second_std, 1, "noise_std of second moment is another one"),
    "larger than users": ("run", larger_data(100), 1, "the clipped vectors of 6 users"),
    "so far": ("run", stated(epsilon_so_far=0.1), 0, "epsilon_so_far, failure"),
    "tensor": ("run", tensor_of_private_numbers, 1, "nor statement has a tensor private"),
    "constants": ("run", constants_of_private_numbers, 0, "not checked: tensor private"),
    "field": ("stream", added_field, 0, "too_noisy, true_mean"),
    "renamed mean": ("stream", field_of("mean", "Mean"), 1, "there is no mean"),
    "renamed covariance": ("stream", field_of("covariance", "cov"), 1, "there is no covariance"),
    "empty": ("stream", lines_of(0, 0), 1, "is empty"),
    "dropped": ("stream", lines_of(3, 30), 0, "27 of 30 releases"),
    "blank": ("stream", lines_of(0, 30, "\n"), 1, "line 31 is not JSON"),
    "no object": ("stream", lines_of(0, 30, "[1]\n"), 1, "line 31 is not JSON"),
    "release 0": ("stream", lines_of(0, 30, '{"t": 0}\n'), 1, "line 31 is not a release"),
    "noise in two rounds": ("run", noise_in_two_rounds, 1, "updates in round"),
    "more rounds": ("stream", twice_the_rounds, 1, "60 rounds: more rounds than n"),
    "public seed": ("run", nothing, 0, "SIMULATION: the seed of the noise is public"),
    "large data": ("run", larger_data(3), 0, "data hide the noise of updates"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    place = tmp_path_factory.mktemp("honest")
    more = {"mechanisms": ("banded-toeplitz",), "bands": 3}
    return {
        "run": private_run(place / "run", mechanism="banded-toeplitz", server=SGD),
        "stream": private_stream(place / "stream", users=False, **more),
    }


Command = Callable[[list[Path]], tuple[int, str]]


@pytest.fixture
def command(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run the script with files as its arguments; exit code and output."""

    def run(files: list[Path]) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["verify.py", *map(str, files)])
        code = script.main()
        return code, capsys.readouterr().out

    return run


def changed_copies(honest: list[Path], change: Lie, place: Path) -> list[Path]:
    """Copies of statement, released folder and published file, changed, with their new digests."""
    statement, folder, published = honest
    copied_folder = Path(shutil.copytree(folder, place / FOLDER))
    copied_statement = Path(shutil.copy(statement, place))
    copied_published = Path(shutil.copy(published, place))
    change(copied_statement, copied_folder, copied_published)
    with_digests(copied_statement, copied_folder)
    return [copied_statement, copied_folder, copied_published]


@pytest.mark.parametrize(
    ("what", "lie"), [("run", lie) for lie in OF_RUNS] + [("stream", lie) for lie in OF_STREAMS]
)
def test_a_lie_is_rejected(
    what: str, lie: str, honest: dict[str, list[Path]], script: ModuleType, tmp_path: Path
) -> None:
    lies = OF_RUNS if what == "run" else OF_STREAMS
    statement, folder, published = changed_copies(honest[what], lies[lie], tmp_path)
    with pytest.raises(script.Rejected):
        script.verify(statement, folder, [published])


@pytest.mark.parametrize("lie", OF_OPERATORS)
def test_the_command_tells_what_it_sees(
    lie: str, honest: dict[str, list[Path]], command: Command, tmp_path: Path
) -> None:
    """A lie is rejected, or a line names what no public file shows."""
    what, change, status, told = OF_OPERATORS[lie]
    files = changed_copies(honest[what], change, tmp_path)
    code, output = command([file for file in files if file.exists()])
    assert code == status
    assert told in output


@pytest.mark.parametrize("name", [PLAN, INTEGERS, "initial.safetensors"])
def test_released_files_must_be_those_of_the_statement(
    name: str, honest: dict[str, list[Path]], script: ModuleType, tmp_path: Path
) -> None:
    statement, folder, _ = honest["run"]
    shutil.copytree(folder, tmp_path / FOLDER)
    content = bytearray((tmp_path / FOLDER / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / FOLDER / name).write_bytes(content)
    with pytest.raises(script.Rejected, match=f"{name} is not the file"):
        script.check_files(json.loads(statement.read_text()), tmp_path / FOLDER, "run")
    copy = Path(shutil.copy(statement, tmp_path))
    edited(copy, lambda said: said["released_files"].pop(name))
    with pytest.raises(script.Rejected, match="no digests of the released files"):
        script.check_files(json.loads(copy.read_text()), folder, "run")


@pytest.fixture(scope="module")
def noises(tmp_path_factory: pytest.TempPathFactory, script: ModuleType) -> dict[str, Any]:
    """Arguments of `check_noise`, and the released integers of two runs with the same noise."""
    place = tmp_path_factory.mktemp("noises")
    plan = {}
    released = {}
    for name, rows in {"data": random_rows(900), "zeros": np.zeros((24, 900))}.items():
        with fedmf.start(run_of(rows, execution=KEPT), place / name) as session:
            run_in_process(session)
        plan = json.loads((place / name / FOLDER / PLAN).read_text())
        [released[name]] = script.read_integers(place / name / FOLDER, plan["parts"], 12)
    matrices = [script.strategy(part["strategy"]) for part in plan["parts"]]
    return {"parts": plan["parts"], "matrices": matrices, **released}


@pytest.mark.parametrize(
    ("data", "factor", "fault"),
    [
        ("data", 0.9, "smaller than stated"),
        ("data", 1.0, None),
        ("zeros", 0.9, "smaller than stated"),
        ("zeros", 1.0, None),
        ("zeros", 1.1, "too large"),
    ],
)
def test_noise_of_another_size_is_rejected(
    data: str, factor: float, fault: str | None, noises: dict[str, Any], script: ModuleType
) -> None:
    """With data only too little noise is seen, whatever they are."""
    integers = noises[data] + np.rint((factor - 1) * noises["zeros"]).astype(np.int64)
    check = [noises["parts"], noises["matrices"], [integers], data == "zeros"]
    if fault is None:
        script.check_noise(*check)
        return
    with pytest.raises(script.Rejected, match=fault):
        script.check_noise(*check)


def without_half(noise: np.ndarray) -> np.ndarray:
    """All noise is in half of the coordinates, with the energy of all."""
    return np.where(np.arange(noise.shape[1]) % 2, math.sqrt(2.02) * noise, 0.0)


def with_a_row_twice(noise: np.ndarray) -> np.ndarray:
    noise[7] = noise[3]
    return noise


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (without_half, "missing in some coordinates"),
        (with_a_row_twice, "round 8 is that of round 4 again"),
    ],
)
def test_noise_that_is_not_fresh_everywhere_is_rejected(
    change: Callable[[np.ndarray], np.ndarray],
    fault: str,
    noises: dict[str, Any],
    script: ModuleType,
) -> None:
    """Data are added after the change; without it they are accepted."""
    [(C, _)] = noises["matrices"]
    white = C @ noises["zeros"]
    for noise, rejected in ((white.copy(), False), (change(white), True)):
        integers = np.rint(np.linalg.solve(C, noise)).astype(np.int64)
        integers += noises["data"] - noises["zeros"]
        check = [noises["parts"], noises["matrices"], [integers], False, 6]
        if not rejected:
            script.check_noise(*check)
            continue
        with pytest.raises(script.Rejected, match=fault):
            script.check_noise(*check)


def test_noise_of_another_matrix_is_rejected(noises: dict[str, Any], script: ModuleType) -> None:
    """The identity is claimed, and four fifths of the noise that the integers have at least."""
    identity = (np.eye(12), False)
    integers = noises["data"]
    std = 0.8 * np.sqrt(np.square(integers.astype(float)).mean(axis=1)).min()
    [part] = noises["parts"]
    with pytest.raises(script.Rejected, match="the clipped vectors of 6 users"):
        script.check_noise([{**part, "std": std}], [identity], [integers], False, 6)


def test_sums_of_floats_are_rounded_once(script: ModuleType) -> None:
    """Numbers near the middle of two floats, where rounding twice gives the other one."""
    rng = np.random.default_rng(5)
    a = np.float32(1 + 2.0**-23)
    y = (1 + rng.integers(0, 2**23, 400) * 2.0**-23).astype(np.float32)
    x = np.full(400, 2.0**-24 * (1 - 2.0**-23), np.float32) * rng.choice([-1, 1], 400)
    x = np.append(x, rng.normal(size=100)).astype(np.float32)
    y = np.append(y, rng.normal(size=100)).astype(np.float32)
    found = script.fused(float(a), x, y)
    for each in zip(x, y, found, strict=True):
        exact = Fraction(float(a)) * Fraction(float(each[0])) + Fraction(float(each[1]))
        near = [np.nextafter(each[2], np.float32(side)) for side in (-np.inf, np.inf)]
        error = abs(Fraction(float(each[2])) - exact)
        assert all(error <= abs(Fraction(float(other)) - exact) for other in near)


def test_models_of_fused_and_of_separate_operations_are_accepted(
    honest: dict[str, list[Path]], script: ModuleType, tmp_path: Path
) -> None:
    statement, folder, published = honest["run"]
    plan = json.loads((folder / PLAN).read_text())
    integers = script.read_integers(folder, plan["parts"], 12)
    theta = np.zeros(DIMENSION, np.float32)
    last = []
    for add in (script.fused, script.separate):
        last.append(script.models_of(plan, 12, integers, theta, add)[-1])
    assert (last[0] == safetensors.numpy.load_file(published)["weight"]).all()
    assert (last[0] != last[1]).any()
    model = {"weight": last[1].reshape(1, -1)}
    (tmp_path / "model.safetensors").write_bytes(safetensors.numpy.save(model, {"rounds": "12"}))
    script.verify(statement, folder, [tmp_path / "model.safetensors"])


def test_the_command_accepts_and_rejects(
    honest: dict[str, list[Path]], command: Command, tmp_path: Path
) -> None:
    for files in honest.values():
        code, output = command(files)
        assert code == 0
        assert "ACCEPTED" in output
        assert "that a user's rows were clipped" in output
    statement, folder, _ = changed_copies(honest["run"], fewer_integers, tmp_path)
    code, output = command([statement, folder])
    assert code == 1
    assert "REJECTED: integers.bin does not hold 12 releases" in output


def test_it_imports_nothing_of_the_package() -> None:
    tree = ast.parse(SCRIPT.read_text())
    names = [
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    ]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} == {
        "collections",
        "hashlib",
        "itertools",
        "json",
        "math",
        "numpy",
        "pathlib",
        "safetensors",
        "scipy",
        "sys",
    }


@pytest.mark.parametrize(("k", "b"), [(1, 1), (2, 3), (3, 2), (8, 1)])
def test_sensitivities_are_those_of_every_pattern(k: int, b: int, script: ModuleType) -> None:
    rng = np.random.default_rng(3)
    general = np.tril(rng.uniform(0, 1, (8, 8))) + np.eye(8)
    signed = np.tril(rng.normal(size=(8, 8))) + 3 * np.eye(8)
    for C in (bisr(8, 3), general, signed, np.eye(8)):
        gram = np.abs(C.T @ C)
        truth = max(gram[np.ix_(pattern, pattern)].sum() for pattern in patterns(8, k, b))
        square, exact = script.worst_square([C], lambda p: p, k, b)
        assert square >= truth * (1 - 1e-12)
        assert square == pytest.approx(truth, rel=1e-12) or not exact
        assert exact or (C is signed and square == pytest.approx(truth, rel=1e-12))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 20.0])
def test_epsilon_is_that_of_the_gaussian_mechanism(sigma: float, script: ModuleType) -> None:
    assert script.epsilon_of(1 / sigma, 1e-6) == pytest.approx(
        gaussian_epsilon(sigma, 1e-6), rel=1e-9
    )


def failing_append(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The process dies between a commit and the file, at the record of this number."""
    append = ReleasedIntegers.append
    calls = []

    def failing(self: ReleasedIntegers, records: bytes) -> None:
        if records:
            calls.append(len(records))
        if len(calls) == at:
            raise LedgerError("No space left on device.")
        append(self, records)

    monkeypatch.setattr(ReleasedIntegers, "append", failing)


def test_integers_of_a_run_are_complete_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record before its commit; the next process writes the one that the file lacks."""
    run = run_of(random_rows(DIMENSION), execution=KEPT)
    with fedmf.start(run, tmp_path / "whole") as session:
        run_in_process(session)
    with fedmf.start(run, tmp_path / "run") as session:
        with monkeypatch.context() as patched:
            failing_append(patched, 5)
            with pytest.raises(LedgerError, match="No space left"):
                run_in_process(session)
        assert session.directory.ledger.released == 5
    file = tmp_path / "run" / FOLDER / INTEGERS
    assert file.stat().st_size == 4 * DIMENSION * 8
    with file.open("ab") as cut:
        cut.write(b"half")  # of a record
    with fedmf.resume(run, tmp_path / "run") as session:
        assert file.stat().st_size == 5 * DIMENSION * 8
        run_in_process(session)
    assert file.read_bytes() == (tmp_path / "whole" / FOLDER / INTEGERS).read_bytes()
    file.write_bytes(file.read_bytes()[: -2 * DIMENSION * 8])
    with pytest.raises(LedgerError, match="must hold 11 records of released integers"):
        fedmf.resume(run, tmp_path / "run")


def test_integers_of_a_stream_are_complete_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sample(6, 3) / 4
    with pushed(tmp_path / "whole", 6, dimension=3, keep_releases=True) as stream:
        for i, row in enumerate(rows):
            stream.push(row, user=f"u{i}")
    stream = pushed(tmp_path / "stream", 6, dimension=3, keep_releases=True)
    with monkeypatch.context() as patched:
        failing_append(patched, 3)
        stream.push(rows[0], user="u0")
        stream.push(rows[1], user="u1")
        with pytest.raises(LedgerError, match="No space left"):
            stream.push(rows[2], user="u2")
    stream.close()
    with pushed(tmp_path / "stream", 6, dimension=3, keep_releases=True) as stream:
        assert stream.t == 3
        for i in range(3, 6):
            stream.push(rows[i], user=f"u{i}")
    for name in (PLAN, INTEGERS):
        files = [tmp_path / place / FOLDER / name for place in ("stream", "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_releases_are_kept_with_every_state() -> None:
    with pytest.raises(ValueError, match="checkpoint_every must be 1 with keep_releases"):
        fedmf.Execution(keep_releases=True, checkpoint_every=2)
