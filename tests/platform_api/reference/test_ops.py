"""Each op reference against numpy in float64, and the noise against the published Philox vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from inferplane_api.kv import KVView
from inferplane_api.ops import SCHEMAS
from inferplane_api.reference import ops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def cases(name: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(7)
    return load(SCHEMAS[name].generator)(dtype, torch.device("cpu"), generator)


def wide(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy()


def rms_norm(x: Any, weight: Any, eps: float, offset: float) -> np.ndarray:
    x, weight = wide(x), wide(weight)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * (weight + offset)


def add_rms_norm(x: Any, residual: Any, **rest: Any) -> tuple[np.ndarray, np.ndarray]:
    total = x + residual
    return rms_norm(total, **rest), wide(total)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> np.ndarray:
    x = wide(x)
    normalised = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return normalised * wide(weight) + (0 if bias is None else wide(bias))


def rope(q: Any, k: Any, cos: Any, sin: Any, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """A pair is a complex number, turned by multiplication."""
    turn = (wide(cos) + 1j * wide(sin))[:, None]
    half = turn.shape[-1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    turned = []
    for x in (wide(q).copy(), wide(k).copy()):
        pairs = (x[..., first] + 1j * x[..., second]) * turn
        x[..., first], x[..., second] = pairs.real, pairs.imag
        turned.append(x)
    return turned[0], turned[1]


def halves(x: Any) -> tuple[np.ndarray, np.ndarray]:
    width = x.shape[-1] // 2
    return wide(x)[..., :width], wide(x)[..., width:]


def silu_mul(x: Any) -> np.ndarray:
    gate, up = halves(x)
    return gate / (1 + np.exp(-gate)) * up


def gelu_mul(x: Any) -> np.ndarray:
    gate, up = halves(x)
    return gate * 0.5 * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) * up


def gelu_tanh_mul(x: Any) -> np.ndarray:
    gate, up = halves(x)
    return gate * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) * up


def log_softmax(logits: Any) -> np.ndarray:
    shifted = wide(logits) - wide(logits).max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


ORACLES: dict[str, Callable[..., Any]] = {
    "embedding": lambda ids, weight: wide(weight)[ids.numpy()],
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "layer_norm": layer_norm,
    "rope": rope,
    "silu_mul": silu_mul,
    "gelu_mul": gelu_mul,
    "gelu_tanh_mul": gelu_tanh_mul,
    "soft_cap": lambda x, cap: cap * np.tanh(wide(x) / cap),
    "log_softmax": log_softmax,
}


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("name", ORACLES)
def test_reference_equals_numpy(name: str, dtype: str) -> None:
    torch_dtype = DTYPES.get(dtype, torch.float64)
    tolerance = SCHEMAS[name].tolerances.get(dtype, (1e-12, 1e-12))
    found_cases = cases(name, torch_dtype)
    assert len(found_cases) > 3
    for arguments in found_cases:
        found, expected = load(SCHEMAS[name].reference)(**arguments), ORACLES[name](**arguments)
        found = found if isinstance(found, tuple) else (found,)
        expected = expected if isinstance(expected, tuple) else (expected,)
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            assert x.dtype == (torch.float32 if name == "log_softmax" and dtype != "float64" else torch_dtype)
            np.testing.assert_allclose(wide(x), y, *tolerance)


def test_every_schema_has_a_documented_reference_and_a_generator() -> None:
    for schema in SCHEMAS.values():
        assert load(schema.reference).__doc__
        assert cases(schema.name, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_rounds_where_transformers_rounds(dtype: torch.dtype) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    torch.manual_seed(0)
    x, weight = torch.randn(40, 64).to(dtype), torch.randn(64).to(dtype)
    for module, offset in ((LlamaRMSNorm(64, 1e-6), 0.0), (Gemma3RMSNorm(64, 1e-6), 1.0)):
        module.weight = torch.nn.Parameter(weight)
        assert torch.equal(ops.rms_norm(x, weight, 1e-6, offset), module(x).detach())


def test_kv_write_puts_each_token_into_its_slot_and_skips_padding() -> None:
    for arguments in cases("kv_write", torch.float32):
        kv: KVView = arguments["kv"]
        expected = [np.zeros(kv.k.shape), np.zeros(kv.v.shape)]
        for token, slot in enumerate(arguments["slot_mapping"].tolist()):
            if slot < 0:
                continue
            page, offset = divmod(slot, kv.tokens_per_page)
            place = (page, offset) if kv.layout.order == "thd" else (page, slice(None), offset)
            for cache, new in zip(expected, (arguments["k"], arguments["v"]), strict=True):
                cache[place] = new[token]
        ops.kv_write(**arguments)
        np.testing.assert_array_equal(kv.k, expected[0])
        np.testing.assert_array_equal(kv.v, expected[1])
        assert not kv.k[0].any()


def test_kv_write_casts_to_the_cache() -> None:
    arguments = cases("kv_write", torch.float32)[0]
    kv = arguments["kv"]
    kv = kv._replace(k=kv.k.bfloat16(), v=kv.v.bfloat16())
    ops.kv_write(arguments["k"], arguments["v"], kv, arguments["slot_mapping"])
    slot = int(arguments["slot_mapping"][0])
    stored = kv.k[slot // kv.tokens_per_page, slot % kv.tokens_per_page]
    assert torch.equal(stored, arguments["k"][0].bfloat16())


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 101])
def test_bitmask_forbids_exactly_the_unset_bits(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    allowed = random.integers(0, 2, (4, vocab)).astype(bool)
    words = np.zeros((4, -(-vocab // 32)), np.uint32)
    for row, token in zip(*np.nonzero(allowed), strict=True):
        words[row, token // 32] |= np.uint32(1 << (token % 32))
    logits = torch.randn(4, vocab)
    before = logits.clone()
    ops.apply_token_bitmask(logits, torch.from_numpy(words.view(np.int32)))
    expected = np.where(allowed, before.numpy(), -np.inf)
    np.testing.assert_array_equal(logits, expected)


KNOWN_ANSWERS = [
    # Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, result: str) -> None:
    as_tensors = [tuple(torch.tensor([w]) for w in words_of(text)) for text in (counter, key)]
    found = ops.philox4x32(*as_tensors)  # type: ignore[arg-type]
    assert [int(x) for x in found] == words_of(result)
    assert philox(words_of(counter), words_of(key)) == words_of(result)


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python's unbounded integers, from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(second >> 32) ^ c[1] ^ k[0], second % 2**32, (first >> 32) ^ c[3] ^ k[1], first % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def test_gumbel_noise_equals_an_oracle_in_python_integers() -> None:
    for arguments in cases("gumbel_noise", torch.float32):
        found = ops.gumbel_noise(**arguments)
        assert found.dtype == torch.float32
        for row, (seed, position) in enumerate(
            zip(arguments["seeds"].tolist(), arguments["positions"].tolist(), strict=True)
        ):
            for column, token in enumerate(arguments["ids"][row].tolist()):
                words = philox([token // 4, position % 2**32, position >> 32, 0], [seed % 2**32, (seed % 2**64) >> 32])
                uniform = ((words[token % 4] >> 8) + 0.5) / 2**24
                assert float(found[row, column]) == pytest.approx(-math.log(-math.log(uniform)), rel=1e-6, abs=1e-7)


def test_gumbel_noise_is_finite_and_distributed_as_it_should_be() -> None:
    ids = torch.arange(200_000)[None]
    noise = ops.gumbel_noise(torch.tensor([12345]), torch.tensor([3]), ids)[0].double().numpy()
    assert np.isfinite(noise).all()
    # Kolmogorov-Smirnov distance to exp(-exp(-x)); 1.95 / sqrt(n) is the 0.1 % point
    ordered = np.sort(noise)
    distance = np.abs(np.exp(-np.exp(-ordered)) - np.arange(1, len(noise) + 1) / len(noise)).max()
    assert distance < 1.95 / math.sqrt(len(noise))


def test_the_largest_uniform_gives_finite_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 24 bits set: in float32 u would round to 1 and the noise to infinity."""
    largest = (2**24 - 1 + 0.5) * 2.0**-24
    assert float(np.float32(largest)) == 1.0
    ones = (torch.tensor([[0xFFFFFFFF]]),) * 4
    monkeypatch.setattr(ops, "philox4x32", lambda counter, key: ones)
    noise = ops.gumbel_noise(torch.tensor([1]), torch.tensor([0]), torch.tensor([[5]]))
    assert float(noise) == pytest.approx(-math.log(-math.log(largest)), rel=1e-6)


def test_noise_of_a_token_does_not_depend_on_its_company() -> None:
    seeds, positions = torch.tensor([5, -7, 9]), torch.tensor([0, 1, 2])
    full = ops.gumbel_noise(seeds, positions, torch.arange(50).repeat(3, 1))
    alone = ops.gumbel_noise(seeds[1:2], positions[1:2], torch.tensor([[49, 3]]))
    assert torch.equal(alone[0], full[1, [49, 3]])
    assert len({float(x) for x in full.flatten()}) > 145
