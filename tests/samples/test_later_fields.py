"""A field that comes later than its kind leaves older records readable, wherever they are read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from samples.make import fields_of_today
from samples.test_samples import HERE, differences, figures, output, unpacked

from fedmf.runs.recorded.reading import read_header
from fedmf.runs.run import _KINDS, Run, difference
from fedmf.values import Value, added, in_full, value_of

#: Where a run keeps values of some kind: a kind that a sample has.
PLACES = {
    "cohorts": ("plain", "cyclic"),
    "privacy": ("plain", "user-level"),
    "clipping": ("quantile-clipping", "quantile"),
    "optimizer": ("adam", "adam"),
    "local": ("plain", "sgd"),
    "execution": ("plain", "flower"),
    "evaluation": ("plain", "off"),
}


def with_later_fields(kind: type[Any]) -> type[Any]:
    """The class as a later version might have it: two more fields, one of which did something else before."""

    @dataclasses.dataclass(frozen=True)
    class Later(kind):
        backwards: bool = added(False)
        sizes: tuple[int, ...] = added((3,), before=(1, 2))

    return Later


@pytest.mark.parametrize("place", PLACES)
def test_a_sample_is_accounted_for_verified_and_gone_on_with(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, kind = PLACES[place]
    folder, noted = unpacked(HERE / "header-7" / f"{sample}.tar.xz", tmp_path)
    before, after = tmp_path / "before", tmp_path / "after"
    output(capsys, "keygen", str(tmp_path / "operator.key"))
    signed = "--sign-with", str(tmp_path / "operator.key")
    output(capsys, "account", str(folder), "--publish", str(before), *signed)

    monkeypatch.setitem(_KINDS[place], kind, with_later_fields(_KINDS[place][kind]))  # type: ignore[arg-type]
    now = json.loads(output(capsys, "account", str(folder), "--json"))
    assert list(differences(figures(noted["stopped"]), now)) == []
    output(capsys, "account", str(folder), "--publish", str(after), *signed)
    old, new = (str(public / "statement.json") for public in (before, after))
    for statement in (old, new):
        printed = output(capsys, "verify", statement, "--run", str(folder), "--committed", old)
        assert "every figure and sentence" in printed
    output(capsys, "simulate", "--resume", str(folder))
    ended = json.loads(output(capsys, "account", str(folder), "--json"))
    assert list(differences(figures(noted["ended"]), ended)) == []
    assert "every figure and sentence" in output(capsys, "verify", old, "--run", str(folder))


@pytest.mark.parametrize("place", PLACES)
def test_a_recorded_run_differs_in_a_later_field_only_where_it_means_something_else(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, kind = PLACES[place]
    folder, _ = unpacked(HERE / "header-7" / f"{sample}.tar.xz", tmp_path)
    recorded = read_header(folder).run
    monkeypatch.setitem(_KINDS[place], kind, with_later_fields(_KINDS[place][kind]))  # type: ignore[arg-type]
    run = Run.from_dict(recorded).to_dict()
    assert run[place]["backwards"] is False
    assert run[place]["sizes"] == [1, 2]
    assert difference(recorded, run) is None
    run[place]["backwards"] = True
    said = difference(recorded, run)
    assert said is not None
    assert f"its {place}.backwards is False, not True" in said


def test_what_was_never_there_or_always_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Kind(Value):
        kind: ClassVar[str] = "kind"
        always: int = 1
        later: int = added(2)

    kinds = {"kind": Kind}
    assert value_of(kinds, {"kind": "kind", "always": 5}) == Kind(5, 2)
    assert in_full(kinds, {"kind": "other"}) == {"kind": "other"}
    with pytest.raises(ValueError, match="differing: always"):
        value_of(kinds, {"kind": "kind", "later": 5})
    with pytest.raises(ValueError, match="differing: unknown"):
        value_of(kinds, {"kind": "kind", "always": 5, "unknown": 5})


def test_fields_since_the_last_release_say_what_records_without_them_mean() -> None:
    """Written by `make.py` with each release: what its records have."""
    released: Mapping[str, Mapping[str, list[str]]] = json.loads((HERE / "fields.json").read_text())
    for place, kinds in fields_of_today().items():
        for kind, fields in kinds.items():
            had = released.get(place, {}).get(kind)
            if had is not None:
                unmarked = [name for name, marked in fields.items() if name not in had and not marked]
                assert not unmarked, f"{place} {kind}: mark {unmarked} with fedmf.values.added"
                assert not set(had) - set(fields), f"{place} {kind}: records of before have more fields"
