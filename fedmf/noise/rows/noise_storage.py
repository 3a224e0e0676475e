"""What a stream of noise keeps, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from fedmf.factorization import StreamingInverse, rounding_inflation
from fedmf.participation import Participation
from fedmf.values import Value

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class NoiseStorage(Value):
    """What a stream of noise stores between rounds, and what it draws again from the key.

    Args:
        policy: "auto" follows the form of C⁻¹; "regenerate" stores nothing; "buffer" stores past z where they
            would be drawn again.
        dtype: of stored outputs and decaying sums. Past z and block sums are float64 whatever it says.
        memory_limit: bytes that stored vectors may take; None: what C⁻¹ needs, or 4 MiB of past z.

    Raises:
        ValueError: a field is none of these.

    >>> NoiseStorage(dtype="float32").to_dict()
    {'kind': 'noise-storage', 'policy': 'auto', 'dtype': 'float32', 'memory_limit': None}
    """

    kind: ClassVar[str] = "noise-storage"

    policy: Literal["auto", "regenerate", "buffer"] = "auto"
    dtype: Literal["float64", "float32"] = "float64"
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in ("auto", "regenerate", "buffer"):
            raise ValueError(f"policy must be 'auto', 'regenerate' or 'buffer'; got {self.policy!r}.")
        if self.dtype not in ("float64", "float32"):
            reason = ", whose rounding moves the noise of neighbours apart by more than a user's update does"
            raise ValueError(
                "dtype (of stored vectors) must be 'float64' or 'float32'; "
                f"got {self.dtype!r}{reason if self.dtype == 'bfloat16' else ''}."
            )
        limit = self.memory_limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ValueError(
                f"memory_limit (bytes) must be an integer of at least 0, or None; got {limit!r}."
            )

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch calls it."""
        import torch

        return torch.float64 if self.dtype == "float64" else torch.float32

    def inflation(
        self, inverse: StreamingInverse, participation: Participation, dimension: int, noise_multiplier: float
    ) -> float:
        """F ≥ 1, by which σ must grow so that rounding what is stored costs no privacy.

        It is 1 where nothing is rounded: in float64, for "regenerate", and for forms of C⁻¹ that store no
        outputs. Otherwise `fedmf.factorization.rounding_inflation`, also where a limit on memory then makes
        a stream store nothing: F must not depend on the machine.

        Args:
            inverse: C⁻¹ as it is streamed.
            participation: (n, k, b) of the run.
            dimension: d of the whole vector, not of a shard.
            noise_multiplier: σ, the scale's multiple of ζ·sens(C).

        Returns:
            F for `NoiseStream(inflation=F)`.

        Raises:
            ValueError: rounding would cost too much for this C⁻¹ and d, or an argument is out of range.
        """
        if self.policy == "regenerate" or self.dtype == "float64":
            return 1.0
        from fedmf.noise.rows.row_rules import of_inverse

        if not of_inverse(inverse).roundable:
            return 1.0
        return rounding_inflation(inverse, participation, dimension, noise_multiplier)

    def of_part(self, part: int, whole: int) -> NoiseStorage:
        """The same for `part` of `whole` elements: its share of the memory."""
        if self.memory_limit is None:
            return self
        return replace(self, memory_limit=self.memory_limit * part // whole)
