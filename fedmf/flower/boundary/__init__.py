"""Where what nodes send enters: pulled one by one, checked before it is decoded, refused node by node."""

from fedmf.flower.boundary.claims import Claims, Handshakes, checked_array, shown
from fedmf.flower.boundary.enrolment import Enrolment
from fedmf.flower.boundary.pulling import Wait, pull_until
from fedmf.flower.boundary.served_users import ServedUsers

__all__ = [
    "Claims",
    "Enrolment",
    "Handshakes",
    "ServedUsers",
    "Wait",
    "checked_array",
    "pull_until",
    "shown",
]
