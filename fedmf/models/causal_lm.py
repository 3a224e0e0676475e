"""Causal language models of transformers, split into frozen first blocks and trained last ones.

The first blocks are constants, so each text passes through them once in a run, however many rounds
it has (`fedmf.training.frozen_features`).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from fedmf.errors import ConfigError
from fedmf.models.frozen import freeze, own_copy


class _Skipped(nn.Module):
    """Stands in for a block that is not computed; it returns the hidden states it receives."""

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Hidden states, shape (batch, T, width), unchanged."""
        return hidden_states


class _Entrance(_Skipped):
    """Stands in for the block at the cut; it notes what it receives, or replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self.received: Tensor | None = None
        self.replacement: Tensor | None = None

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """The replacement, or the hidden states, shape (batch, T, width)."""
        self.received = hidden_states
        if self.replacement is not None:
            return self.replacement
        return hidden_states


class FirstBlocks(nn.Module):
    """The first blocks of a model, from tokens to the hidden states that enter the other blocks.

    Args:
        model: a causal language model of transformers, whose tensors are shared.
        blocks: how many blocks these are.
    """

    def __init__(self, model: nn.Module, blocks: int) -> None:
        super().__init__()
        self.body = own_copy(model).base_model  # without the head
        layers = _blocks_of(self.body)
        self.entrance = _Entrance()
        layers[blocks] = self.entrance
        for place in range(blocks + 1, len(layers)):
            layers[place] = _Skipped()

    def forward(self, input_ids: Tensor) -> Tensor:
        """Hidden states, shape (batch, T, width), of tokens, shape (batch, T)."""
        try:
            self.body(input_ids=input_ids, use_cache=False)
            hidden = self.entrance.received
        finally:
            self.entrance.received = None
        assert hidden is not None
        return hidden


class LastBlocks(nn.Module):
    """The last blocks of a model and its head, from hidden states to logits.

    Released models have the names of the whole model.

    Args:
        model: a causal language model of transformers, whose tensors are shared.
        blocks: how many blocks come before these.
    """

    #: Before the names of the whole model's parameters.
    WRAPPED: Final = "inner."

    def __init__(self, model: nn.Module, blocks: int) -> None:
        super().__init__()
        self.inner = own_copy(model)
        layers = _blocks_of(self.inner)
        self.entrance = _Entrance()
        for place in range(blocks - 1):
            layers[place] = _Skipped()
        layers[blocks - 1] = self.entrance

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Logits, shape (batch, T, vocabulary), of hidden states, shape (batch, T, width)."""
        # Tokens set the number of positions only: what becomes of them is replaced.
        tokens = torch.zeros(hidden_states.shape[:2], dtype=torch.long, device=hidden_states.device)
        self.entrance.replacement = hidden_states
        try:
            return self.inner(input_ids=tokens, use_cache=False).logits
        finally:
            self.entrance.replacement = None
            self.entrance.received = None


def split_causal_lm(model: nn.Module, trained_blocks: int = 1) -> nn.Sequential:
    """Split a causal language model into frozen first blocks, and last blocks with the head.

    The chain maps tokens, shape (batch, T), to logits. Texts that are shorter than T are padded on
    the right by any tokens, with −100 as their labels: no position sees those that follow it.

    Args:
        model: a model of transformers, such as `with_lora` returns it. It shares its tensors with
            the chain. Its trained parameters belong to the last blocks.
        trained_blocks: how many blocks stay in the second part; fewer than the model has.

    Raises:
        ConfigError: the model is none with a list of blocks, has too few of them, or trains a
            parameter of the first ones.

    Guarantees: logits and gradients are those of the whole model.
    """
    blocks = len(_blocks_of(model)) - trained_blocks
    if trained_blocks < 1 or blocks < 1:
        raise ConfigError(
            "trained_blocks must be at least 1 and fewer than the model has,"
            f" {blocks + trained_blocks}; got {trained_blocks}."
        )
    first = FirstBlocks(model.eval(), blocks)
    for name, parameter in first.named_parameters():
        if parameter.requires_grad:
            raise ConfigError(
                f"model must train nothing before its last {trained_blocks} blocks; got"
                f" {name.removeprefix('body.')!r}. Freeze it, or split after fewer blocks."
            )
    return nn.Sequential(freeze(first), LastBlocks(model, blocks))


def _blocks_of(model: nn.Module) -> nn.ModuleList:
    """The list of a model's blocks."""
    config: Any = getattr(model, "config", None)
    count = getattr(config, "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ConfigError(
        "model must be a causal language model of transformers, with a list of"
        f" config.num_hidden_layers blocks; got {type(model).__name__}."
    )
