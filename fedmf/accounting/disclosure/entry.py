"""The entry of a run in the public registry of deployments of differential privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.accounting.disclosure.deployment import Deployment
from fedmf.accounting.rounding import at_least, at_most
from fedmf.accounting.unit import UNITS

__all__ = ["registry_entry"]

_ADJACENCY: Final = {
    "zero-out": (
        "Two data sets are neighbours if one differs from the other in that all updates of one {unit} are "
        "zero vectors; every other {unit}'s are the same."
    ),
    "replace-one": (
        "Two data sets are neighbours if they differ in the updates of one {unit}, which are any within the "
        "clip norm; every other {unit}'s are the same."
    ),
}
_ACTORS: Final = (
    "- {Many}: updates are computed from their examples; {trust}.\n"
    "- Server: trusted to add the noise, and to keep the noise key, updates and sums before noise, and the "
    "record of participation secret.\n"
    "- Whoever sees a released model: not trusted, whatever else they know."
)


def registry_entry(statement: Mapping[str, Any], deployment: Deployment) -> dict[str, Any]:
    """A tier-3 entry of opendp/deployments-registry-data, from what was published and what the operator adds.

    Args:
        statement: what `PrivacyStatement.public` gives, also after JSON.
        deployment: what no statement knows.

    Raises:
        ValueError: the statement promises no privacy, or is the operator's, with figures that are not
            private.

    Guarantees:
        ε and ρ are rounded up. It depends on the statement through its planned figures alone.

    References:
        Schema of the registry, commit 3e9c812 of 2026 (tests/accounting/test_disclosure.py keeps its fields).
    """
    s = require_public(statement)
    unit = UNITS[s["unit"]]
    many = unit.plural
    basic = {
        "name": deployment.name,
        "data_curators": list(deployment.curators),
        "intended_use": deployment.use,
        "data_product_type": deployment.product,
        "data_product_region": deployment.region,
        "description": deployment.description,
        "publication_date": deployment.date,
        **({"data_product_sector": deployment.sector} if deployment.sector else {}),
    }
    parameters = {
        "epsilon": float(at_least(s["epsilon_planned"])),
        "delta": float(at_least(s["delta"])),
        **({"rho": float(at_least(s["rho_planned"]))} if s["amplification"] is None else {}),
    }
    public = [f"{entry['name']}: {entry['value']} ({entry['source']})" for entry in s["public_inputs"]]
    return {
        "url_slug": deployment.slug,
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": (
                    f"{s['rounds']} rounds in which each of {s['users']} {many} contributes a vector of "
                    f"{s['dimension']} numbers of Euclidean norm at most {s['clip_norm']}, or nothing"
                ),
                "unprotected_quantities": _listed([*public, *s["not_covered"]]),
            },
            "privacy_loss": {
                "privacy_unit": unit.name,
                "privacy_unit_details": _ADJACENCY[s["adjacency"]].format(unit=unit.name)
                + f" A {unit.name} takes part in at most {s['max_participations']} rounds, two of them at "
                f"least {s['min_separation']} apart.",
                "privacy_parameters": parameters,
                "privacy_parameters_details": _parameters(s),
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": (
                    f"Federated training with central differential privacy: {s['trust']}; noise is added to "
                    "the sum."
                ),
                "actors": _ACTORS.format(Many=many.capitalize(), trust=s["trust"]),
                "release_type": "One release",
                "release_type_details": (
                    f"The model after every one of {s['rounds']} rounds counts as released; "
                    f"{s['rounds_released']} were. Further runs on the same {many} add to what they lose."
                ),
                "data_source_type": "Static",
                "data_source_type_details": f"What a {unit.name} contributes may change from round to round.",
                "access_type": "Non-interactive",
                "access_type_details": "Models are published as they are; nobody queries the data.",
            },
            "accounting": {
                "post_processing": (
                    "Server optimizer, evaluation and every later use of the models are functions of the "
                    "noisy sums."
                ),
                "composition": _composition(s),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": next(
                    (text for text in s["not_covered"] if text.startswith("hyper-parameter search")),
                    "Not covered by epsilon.",
                ),
                "mechanisms": _mechanisms(s),
                "justification": _listed(s["assumptions"]),
            },
            "administrative": {
                "sources": _listed([*deployment.sources, "Statement: verify it with fedmf verify"]),
                "notes": _listed(s["secret"]),
                "registry_authors": list(deployment.authors),
            },
        },
    }


def require_public(statement: Mapping[str, Any]) -> Mapping[str, Any]:
    """A statement that may be published and promises something.

    Raises:
        ValueError: another.
    """
    if "epsilon_realised" in statement:
        raise ValueError(
            "statement must be what fedmf account --publish wrote; got the operator's, whose realised "
            "figures are not private."
        )
    if statement["epsilon_planned"] is None or statement["noise_key_public"]:
        raise ValueError("statement must promise privacy: got one without noise, or with a public seed.")
    return statement


def _parameters(s: Mapping[str, Any]) -> str:
    text = (
        f"Of the worst {s['unit']} that the contract allows, for all {s['rounds']} rounds; mu = "
        f"{at_least(s['mu_planned'])} as Gaussian differential privacy."
    )
    if s["amplification"] is not None:
        text += (
            " Epsilon holds while it stays secret who took part in which round; whoever knows has epsilon "
            f"{at_least(s['epsilon_planned_known_cohorts'])}, of which mu is."
        )
    return text


def _composition(s: Mapping[str, Any]) -> str:
    text = (
        "All rounds are one Gaussian mechanism on an adaptive stream: its sensitivity counts every round in "
        f"which a {s['unit']} may take part; there is no composition of rounds."
    )
    if s["evaluation"] is not None:
        text += f" {s['evaluation']['evaluations']} private evaluations are a second one, whose mu² adds."
    return text


def _mechanisms(s: Mapping[str, Any]) -> str:
    params = ", ".join(f"{name}={value}" for name, value in s["params"].items())
    kind = "exact" if s["sensitivity_kind"] == "exact" else "an upper bound"
    return _listed(
        [
            f"Gaussian noise correlated over rounds, strategy matrix {s['mechanism']}"
            + (f" ({params})" if params else ""),
            f"noise multiplier {at_most(s['noise_multiplier'])}, sensitivity {at_least(s['sensitivity'])} "
            f"({kind}: {s['sensitivity_case']})",
            f"sampling: {s['sampling']}",
            f"noise from ChaCha20, key {s['noise_key']}",
            f"software: {s['software']}",
        ]
    )


def _listed(texts: list[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"- {text}" for text in texts)
