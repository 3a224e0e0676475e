"""The layers that a module applies one after the other, be it a Sequential or one with its own
`forward`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmf.models import FlatModel

_SIZES: Final = (Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__)
Pair = tuple[int, int]


class NotAChain(ValueError):
    """Why a module is no chain of known layers."""


class Layer(NamedTuple):
    """A layer, and the shapes of an example before and after it.

    Attributes:
        kind: "linear", "convolution", "max pool", "mean pool", "relu", "tanh", "reshape", "log
            softmax", or "nothing".
        weight, bias: parameters, None for none.
        side, step, edge: lines and pixels of a window, between windows, and of padding.
    """

    kind: str
    weight: Tensor | None = None
    bias: Tensor | None = None
    side: Pair = (1, 1)
    step: Pair = (1, 1)
    edge: Pair = (0, 0)
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def _convolution(
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Layer:
    _require(_pair(dilation) == (1, 1) and groups == 1, "a convolution has groups or is dilated")
    height, width = weight.shape[2:]
    return Layer("convolution", weight, bias, (height, width), _pair(stride), _pair(padding))


def _pool(kind: str) -> Callable[..., Layer]:
    def make(
        kernel_size: Any, stride: Any = None, padding: Any = 0, *rest: Any, **named: Any
    ) -> Layer:
        plain = _pair(padding) == (0, 0) and _pair(named.pop("dilation", 1)) == (1, 1)
        named.pop("count_include_pad", None)
        special = any((*rest[:1], *rest[2:], *named.values()))  # the second is count_include_pad
        _require(plain and not special, "pooling is padded or of a special kind")
        side = _pair(kernel_size)
        step = _pair(stride or kernel_size)
        _require(side == step == (2, 2), "windows of pooling are not two by two, side by side")
        return Layer(kind, side=side, step=step)

    return make


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> Layer:
    del inplace
    _require(not training or p == 0, "the model draws random numbers")
    return Layer("nothing")


def _log_softmax(dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Layer:
    del _stacklevel
    _require(dim in (1, -1) and dtype is None, "log_softmax is not of an example's outputs")
    return Layer("log softmax")


def _of_kind(kind: str) -> Callable[..., Layer]:
    return lambda *_, **__: Layer(kind)


#: The layer of a function of torch, given what it is called with after the outputs of the layer
#: before.
_LAYERS: Final[dict[Callable[..., Any], Callable[..., Layer]]] = {
    **dict.fromkeys((F.linear,), lambda weight, bias=None: Layer("linear", weight, bias)),
    **dict.fromkeys((F.conv2d, torch.conv2d), _convolution),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _pool("max pool")),
    **dict.fromkeys((F.avg_pool2d,), _pool("mean pool")),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), _dropout),
    **dict.fromkeys((F.log_softmax, torch.log_softmax, Tensor.log_softmax), _log_softmax),
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), _of_kind("relu")),
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh, Tensor.tanh_), _of_kind("tanh")),
    **dict.fromkeys(
        (torch.flatten, torch.reshape, torch.unsqueeze, torch.squeeze), _of_kind("reshape")
    ),
    **dict.fromkeys(
        (Tensor.flatten, Tensor.view, Tensor.reshape, Tensor.unflatten), _of_kind("reshape")
    ),
    **dict.fromkeys((Tensor.unsqueeze, Tensor.squeeze, Tensor.contiguous), _of_kind("reshape")),
}


def chain_of(model: FlatModel, features: Tensor) -> list[Layer]:
    """The layers of a model from features to outputs.

    The model is called once, and every function of torch that it calls is written down. Tracing by
    torch.fx would change the modules of all threads meanwhile.

    Args:
        model: any; it is left alone.
        features: of some examples.

    Raises:
        NotAChain: a layer is not known, or does not take the outputs of the one before alone.
    """
    recorder = _Recorder(features)
    module = model.copied().module
    try:
        with torch.enable_grad(), recorder:
            outputs = module(features)
    except Exception as error:  # a module may raise anything
        raise NotAChain(f"forward is not recorded: {error}") from error
    _require(outputs is recorder.last, "forward does not return the outputs of the last layer")
    return recorder.layers


class _Recorder(TorchFunctionMode):
    """Writes down the layers that are applied to features within."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.layers = list[Layer]()
        self.last = features
        self._trained = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, and see that it is a layer, or asks for nothing but a size."""
        before = self.last.shape
        named = dict(kwargs or {})
        result = func(*args, **named)
        if (
            result is None
            or isinstance(result, torch.Size | torch.dtype | torch.device)
            or func in _SIZES
        ):
            return result
        name = getattr(func, "__name__", str(func))
        make = _LAYERS.get(func)
        given = args[0] if args else named.pop("input", None)
        if make is None or given is not self.last:
            raise NotAChain(f"{name} is no layer that takes the outputs of the one before alone")
        try:
            layer = make(*args[1:], **named)._replace(
                before=(*before[1:],), after=(*result.shape[1:],)
            )
        except TypeError as error:
            raise NotAChain(f"{name} has arguments that are not known") from error
        self._trained |= any(
            part is not None and part.requires_grad for part in (layer.weight, layer.bias)
        )
        whole = result.shape[:1] == before[:1] and (
            layer.kind != "reshape" or math.prod(layer.before) == math.prod(layer.after)
        )
        _require(whole, f"{name} mixes examples")
        _require(result.requires_grad == self._trained, f"{name} is hidden from gradients")
        self.layers.append(layer)
        self.last = result
        return result


def _require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise NotAChain(otherwise)


def _pair(value: Any) -> Pair:
    _require(not isinstance(value, str), f"padding is {value!r}")
    one, other = (
        (value, value) if isinstance(value, int) else value if len(value) == 2 else value * 2
    )
    return int(one), int(other)
