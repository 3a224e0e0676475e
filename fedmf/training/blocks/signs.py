"""Whether a user's update is within the clip norm, compiled."""

from __future__ import annotations

from fedmf.compiled import inlined

#: An update so near to the clip norm may have been clipped to it before and rounded to float32.
NEAR = 1.0 - 2.0**-20
#: One below it adds nothing: all its integers are zero.
NOTHING = 2.0**-40


@inlined
def sign(norm, clip_norm):
    """+1 within the clip norm, −1 above or at it, 0 for an update that adds nothing."""
    if norm <= NOTHING * clip_norm:
        return 0
    return 1 if norm <= NEAR * clip_norm else -1
