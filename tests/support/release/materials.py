"""The bill of materials: what fedmf is tested with, in CycloneDX's JSON.

Written from the pins and the list of licences, which `make pins` keeps: tools that look at an environment see
only one platform.
"""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement

from fedmf.version import __version__
from tests.support.licences import PAGE, ROOT, pins, rows_of

#: A program that ends with an error unless the bill it is given keeps to CycloneDX's schema.
VALIDATOR = """
import pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = pathlib.Path(sys.argv[1]).read_text()
sys.exit(str(error) if (error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) else 0)
"""
_SPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "fedmf")


def bill(digest: str) -> str:
    """The bill of the wheel with this SHA-256; the same wheel and pins give the same text."""
    versions, licences = pins(), rows_of(PAGE.read_text(encoding="utf-8"))
    names = {name: _reference(name, version) for name, version in versions.items()}
    own = f"pkg:pypi/fedmf@{__version__}"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    needed = {_normal(Requirement(line).name) for line in declared}
    closure = _closure(needed, versions)
    components = [
        {
            "type": "library",
            "bom-ref": names[name],
            "name": name,
            "version": version,
            "scope": "required" if name in closure else "optional",
            "licenses": [_licence(licences[name])],
            "purl": names[name],
        }
        for name, version in versions.items()
    ]
    graph = {own: sorted(names[name] for name in needed)}
    graph |= {names[name]: sorted({names[other] for other in _needs(name, versions)}) for name in versions}
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "fedmf",
                "version": __version__,
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "licenses": [{"expression": "Apache-2.0"}],
                "purl": own,
            }
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": others} for ref, others in graph.items()],
    }
    serial = uuid.uuid5(_SPACE, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "serialNumber": serial.urn}, indent=1) + "\n"


def _reference(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(said: str) -> dict[str, Any]:
    """By its SPDX expression where it is one, in its own words otherwise."""
    try:
        return {"expression": str(canonicalize_license_expression(said))}
    except InvalidLicenseExpression:
        return {"license": {"name": said}}


def _needs(name: str, versions: dict[str, str]) -> Iterator[str]:
    """What a package that is installed here says it needs, without extras, among those that are pinned."""
    try:
        lines = metadata(name).get_all("Requires-Dist", [])
    except PackageNotFoundError:
        return
    for need in map(Requirement, lines):
        other = _normal(need.name)
        if other in versions and (need.marker is None or need.marker.evaluate({"extra": ""})):
            yield other


def _closure(names: set[str], versions: dict[str, str]) -> set[str]:
    reached, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += _needs(name, versions)
    return reached
