"""Where what nodes send enters: pulled one by one, checked before it is decoded, refused node by node."""

from fedmf.flower.boundary.checks import checked_array, shown
from fedmf.flower.boundary.claims import Claims
from fedmf.flower.boundary.handshakes import Handshakes
from fedmf.flower.boundary.pulling import Wait, pull_until
from fedmf.flower.boundary.quarantine import Quarantine

__all__ = ["Claims", "Handshakes", "Quarantine", "Wait", "checked_array", "pull_until", "shown"]
