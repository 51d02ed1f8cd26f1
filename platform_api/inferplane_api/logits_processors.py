"""Custom logits processors: what a plugin's class does with the logits of the requests that ask for it.

Group `inferplane.logits_processors`, or `--logits-processors module:Class`. A processor never sees a request that did
not ask for it, and a step in which nobody asks costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


class ProcessorContext(NamedTuple):
    """What a processor is constructed with."""

    vocab_size: int
    num_slots: int
    """Slots are numbered 0 to num_slots - 1; a request keeps its slot until it leaves or is preempted."""
    max_model_len: int
    """Upper bound of the tokens of a request, prompt included."""
    device: torch.device


class SlotRequest(NamedTuple):
    """A request that enters a slot, for the first time or again after a preemption."""

    slot: int
    arguments: Mapping[str, Any]
    """`SamplingParams.extra_args` (`vllm_xargs` over HTTP), as far as the descriptor declares them: checked against
    it. Of a class given as module:Class, all of them, unchecked."""
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """What was generated before a preemption; empty at first."""


class LogitsProcessor(Protocol):
    """One instance an engine, called from one thread; constructed with a ProcessorContext.

    Whatever a call raises ends the requests that the call is about, with the processor's name in the error, and nobody
    else's; a ValueError of `add` as well, but as a request whose parameters are wrong. No call may wait for the device:
    results on the host are a step old at best.
    """

    def add(self, request: SlotRequest) -> bool:
        """A request enters a slot. True: its logits go through `apply` until `remove`. Where False is returned, the
        slot is not mentioned again. Raises ValueError for arguments that it does not take; its text is for the client,
        who gets a 400."""

    def remove(self, slot: int) -> None:
        """The request of a slot for which `add` returned True has left."""

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> torch.Tensor:
        """logits [n, vocab_size] float32 on the device, after bias, masks and penalties and before the temperature,
        of n slots. Returns the same shape and type; the argument may be changed and returned. Minus infinity excludes a
        token; a row without a finite value fails its request."""

    def sampled(self, slots: Sequence[int], token_ids: torch.Tensor) -> None:
        """token_ids [n] int64 on the device were drawn in n slots, in the order of the call of `apply` before."""
