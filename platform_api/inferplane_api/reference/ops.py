"""A torch reference of every op in `inferplane_api.ops.SCHEMAS`; knows formulas and nothing about speed.

Each takes any floating dtype. Arithmetic runs in float32 (float64 for float64 inputs, which is how tolerances are
checked) and is rounded to the input's dtype at the places where the Hugging Face implementations round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from inferplane_api.kv import KVView

_MASK_32 = 0xFFFFFFFF
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of a table: ids [T] int64, weight [V, D] give [T, D] in weight's dtype."""
    return F.embedding(ids, weight)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension.

    x [..., D], weight [D] give [..., D] in x's dtype. n = x / sqrt(mean(x²) + eps) is computed wide. With offset 0
    (Llama, Qwen, Mistral) the result is weight * round(n), as Hugging Face's LlamaRMSNorm rounds; with another offset
    (Gemma stores weight - 1 and has offset 1) it is round(n * (offset + weight)), as Gemma3RMSNorm does.
    """
    wide = _wide(x)
    normalised = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if offset == 0.0:
        return weight * normalised.to(x.dtype)
    return (normalised * (offset + weight.to(wide.dtype))).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual addition, then `rms_norm`: x, residual [..., D] give (normalised sum, sum), both in x's dtype."""
    total = x + residual
    return rms_norm(total, weight, eps, offset), total


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension (Ba et al., 2016); x [..., D]."""
    wide = _wide(x)
    wide_bias = None if bias is None else bias.to(wide.dtype)
    return F.layer_norm(wide, wide.shape[-1:], weight.to(wide.dtype), wide_bias, eps).to(x.dtype)


def rope_angles(
    positions: torch.Tensor, frequencies: torch.Tensor, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The angles of rotary embeddings: positions [T] int64, frequencies [R/2] float32 give (cos, sin), both [T, R/2]
    float32, times `factor`. An angle is the float32 product of a position and a frequency."""
    angles = positions.unsqueeze(-1).to(frequencies.dtype) * frequencies
    if factor == 1.0:
        return angles.cos(), angles.sin()
    return angles.cos() * factor, angles.sin() * factor


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding (Su et al., 2021) of queries and keys.

    q [T, H, D], k [T, K, D], cos and sin [T, R/2] float32 give new (q, k) in their dtypes. The first R elements of a
    head are rotated in pairs, the others pass through: pairs are (i, i + R/2) or, interleaved, (2i, 2i + 1).
    """
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    half = cos.shape[-1]
    wide = _wide(x)
    rotated, passed = wide[..., : 2 * half], wide[..., 2 * half :]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., :half], rotated[..., half:]
    cos, sin = cos.to(wide.dtype).unsqueeze(-2), sin.to(wide.dtype).unsqueeze(-2)
    new_first, new_second = first * cos - second * sin, second * cos + first * sin
    if interleaved:
        rotated = torch.stack((new_first, new_second), dim=-1).flatten(-2)
    else:
        rotated = torch.cat((new_first, new_second), dim=-1)
    return torch.cat((rotated, passed), dim=-1).to(x.dtype)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU (Shazeer, 2020): x [..., 2 D] holds gate and up; gives round(silu(gate)) * up, [..., D]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(_wide(gate)).to(x.dtype) * up


def gelu_tanh_mul(x: torch.Tensor) -> torch.Tensor:
    """GeGLU with the tanh approximation of GELU: x [..., 2 D] gives round(gelu(gate)) * up, [..., D]."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(_wide(gate), approximate="tanh").to(x.dtype) * up


def gelu_mul(x: torch.Tensor) -> torch.Tensor:
    """GeGLU with the exact GELU (error function): x [..., 2 D] gives round(gelu(gate)) * up, [..., D]."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(_wide(gate)).to(x.dtype) * up


def kv_write(k: torch.Tensor, v: torch.Tensor, kv: KVView, slot_mapping: torch.Tensor) -> None:
    """Write k and v [T, K, D] into their slots, cast to the cache's dtype.

    slot_mapping [T] int64 is page * tokens_per_page + offset; a negative slot (a padded token) is not written, so that
    the null page stays zero.
    """
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    pages = torch.div(slots, kv.tokens_per_page, rounding_mode="floor")
    offsets = slots % kv.tokens_per_page
    for cache, new in ((kv.k, k), (kv.v, v)):
        values = new[written].to(cache.dtype)
        if kv.layout.order == "thd":
            cache[pages, offsets] = values
        else:
            cache[pages, :, offsets] = values


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap), in x's dtype (Bello et al., 2016; Gemma 2)."""
    return (cap * torch.tanh(_wide(x) / cap)).to(x.dtype)


def largest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each row and the lowest id that has it: logits [N, V] float32 give (values [N], ids [N] int64).

    A row that holds NaN has the value NaN, and any id.
    """
    values, ids = logits.max(dim=-1)
    return values, ids


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """logits [N, V] float32 give log-probabilities [N, V] float32."""
    return torch.log_softmax(_wide(logits), dim=-1)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise as a pure function of (seed, output position, token id); there is no generator state.

    seeds [N] int64 (the 64 bits of an unsigned seed), positions [N] int64, ids [N, C] int64 (not negative) give
    [N, C] float32: so a token's noise is the same whether it is drawn alone, in a batch, or among other candidates.

    Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the key (seed low, seed
    high) and the counter (id // 4, position low, position high, 0) gives four words; word id % 4 is the token's.
    u = (top 24 bits + ½) / 2²⁴ lies in (0, 1), and -ln(-ln u) is the noise. The logarithms are taken in float64:
    in float32 the largest u would round to 1 and its noise to infinity.
    """
    counter = (
        torch.div(ids, 4, rounding_mode="floor") & _MASK_32,
        (positions & _MASK_32).unsqueeze(-1).expand_as(ids),
        ((positions >> 32) & _MASK_32).unsqueeze(-1).expand_as(ids),
        torch.zeros_like(ids),
    )
    key = ((seeds & _MASK_32).unsqueeze(-1), ((seeds >> 32) & _MASK_32).unsqueeze(-1))
    words = torch.stack(philox4x32(counter, key), dim=-1)
    word = words.gather(-1, (ids % 4).unsqueeze(-1)).squeeze(-1)
    uniform = ((word >> 8).double() + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform)).float()


def philox4x32(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ten rounds of Philox4x32 on 32-bit words held in int64 tensors that broadcast against each other.

    A 64-bit product wraps around in int64 and keeps all its bits, so both halves are exact.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        product_0, product_1 = c0 * _PHILOX_MULTIPLIERS[0], c2 * _PHILOX_MULTIPLIERS[1]
        high_0, low_0 = (product_0 >> 32) & _MASK_32, product_0 & _MASK_32
        high_1, low_1 = (product_1 >> 32) & _MASK_32, product_1 & _MASK_32
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _MASK_32, (k1 + _PHILOX_WEYL[1]) & _MASK_32
    return c0, c1, c2, c3


def apply_token_bitmask(logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set logits of forbidden tokens to -inf, in place.

    logits [N, V]; mask [N, ceil(V / 32)] int32: bit i % 32 of word i // 32 is set where token i is allowed.
    """
    vocab = logits.shape[-1]
    bits = torch.arange(32, device=mask.device, dtype=torch.int32)
    allowed = ((mask.unsqueeze(-1) >> bits) & 1).flatten(-2)[..., :vocab].bool()
    logits.masked_fill_(~allowed, float("-inf"))
