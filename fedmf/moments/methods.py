"""The methods that make both moments private, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedmf.mechanisms.joint import UserRange
from fedmf.mechanisms.matrix import factorization_from_dict
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.moments.baselines import CS, IME, PP
from fedmf.moments.mechanism import JME, MomentMechanism, MomentMethod
from fedmf.participation import Participation

#: Every method by name.
METHODS: Final[Mapping[str, MomentMethod]] = {method.name: method for method in (JME, IME, CS, PP)}


def mechanism_from_dict(description: Mapping[str, Any]) -> MomentMechanism:
    """Read what `MomentMechanism.to_dict` wrote.

    Raises:
        ValueError: the description is not one of a mechanism.
    """
    fields = dict(description)
    first = factorization_from_dict(fields.pop("first"))
    second, shared = fields.pop("second"), fields.pop("shared")
    return MomentMechanism(
        **{
            **fields,
            "method": METHODS[fields["method"]],
            "first": first,
            "second": first if shared else None if second is None else factorization_from_dict(second),
            "participation": Participation(**fields["participation"]),
            "users": UserRange(**fields["users"]),
            "sensitivity": Sensitivity(**fields["sensitivity"]),
        }
    )
