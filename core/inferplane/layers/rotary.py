"""Cosine and sine of rotary position embeddings, with every scaling that checkpoints ask for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from inferplane_api.reference import ops as reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane.layers.rope_parameters import RopeParameters


class RotaryEmbedding:
    """Positions to the cosines and sines of their angles, computed once a step and shared by the layers.

    There is no table: a step's angles are a product of positions and frequencies, which costs what a gather would, has
    no length to outgrow (and no maximum to fetch from the device to find out), and is captured in a graph as it is.

    Type "dynamic" (NTK-aware scaling): transformers derives the base from the length of the current forward pass, so
    that a key's rotation depends on how the prompt was cut. Under paging a cached key must not: here position p uses
    the base of length max(p + 1, max_position_embeddings), whoever computes it. This equals transformers for every
    context within max_position_embeddings, and for tokens decoded one by one beyond it; a prompt that is itself longer
    differs (transformers rotates all of it with the base of the whole prompt's length).
    """

    def __init__(
        self,
        parameters: RopeParameters,
        device: torch.device,
        angles: Callable[..., tuple[torch.Tensor, torch.Tensor]] = reference.rope_angles,
    ) -> None:
        """`angles`: the op `rope_angles` that a platform's model was bound to."""
        self._parameters = parameters
        self._angles = angles
        # float32 powers on the host, as transformers computes them, so that angles agree to the last bit
        exponents = torch.arange(0, parameters.dim, 2, dtype=torch.float32) / parameters.dim
        self._exponents = exponents.to(device)
        self._frequencies = _scaled(parameters, exponents).to(device)
        self._attention_factor = _attention_factor(parameters)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [T] int64 give (cos, sin), both [T, R / 2] float32, times the attention factor."""
        if self._parameters.rope_type != "dynamic":
            return self._angles(positions, self._frequencies, self._attention_factor)
        steps = positions.unsqueeze(-1).float()
        # contiguous: a broadcast power takes another path, so that a position's last bit would depend on the batch
        base = self._dynamic_base(steps).expand(-1, self._exponents.numel()).contiguous()
        angles = steps * (1.0 / base ** self._exponents.expand_as(base).contiguous())
        return angles.cos(), angles.sin()

    def _dynamic_base(self, steps: torch.Tensor) -> torch.Tensor:
        parameters = self._parameters
        longest = parameters.max_position
        lengths = (steps + 1).clamp(min=longest)
        growth = parameters.factor * lengths / longest - (parameters.factor - 1)
        return parameters.theta * growth ** (parameters.dim / (parameters.dim - 2))


def _scaled(parameters: RopeParameters, exponents: torch.Tensor) -> torch.Tensor:
    frequencies = 1.0 / (parameters.theta**exponents)
    if parameters.rope_type == "linear":
        return frequencies / parameters.factor
    if parameters.rope_type == "yarn":
        return _yarn(parameters, frequencies)
    if parameters.rope_type == "llama3":
        return _llama3(parameters, frequencies)
    return frequencies


def _yarn(parameters: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """YaRN (Peng et al., 2023): fast dimensions keep their frequency, slow ones are interpolated, a ramp between."""

    def dimension_of(rotations: float) -> float:
        """The (fractional) pair that makes this many rotations over the original context."""
        wavelength = parameters.original_max_position / (rotations * 2 * math.pi)
        return parameters.dim * math.log(wavelength) / (2 * math.log(parameters.theta))

    low, high = dimension_of(parameters.beta_fast), dimension_of(parameters.beta_slow)
    if parameters.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, parameters.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(frequencies.numel(), dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequencies / parameters.factor * ramp + frequencies * (1 - ramp)


def _llama3(parameters: RopeParameters, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: wavelengths beyond the original context / low_freq_factor are stretched, short ones kept."""
    rotations = parameters.original_max_position * frequencies / (2 * math.pi)
    low, high = parameters.low_freq_factor, parameters.high_freq_factor
    kept = ((rotations - low) / (high - low)).clamp(0, 1)
    return frequencies / parameters.factor * (1 - kept) + frequencies * kept


def _attention_factor(parameters: RopeParameters) -> float:
    if parameters.rope_type != "yarn":
        return 1.0
    if parameters.attention_factor is not None:
        return parameters.attention_factor
    if parameters.mscale and parameters.mscale_all_dim:
        return _mscale(parameters.factor, parameters.mscale) / _mscale(parameters.factor, parameters.mscale_all_dim)
    return _mscale(parameters.factor, 1.0)


def _mscale(factor: float, multiplier: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0
