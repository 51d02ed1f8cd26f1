"""The sampler against a float64 oracle in numpy, and against the distribution that its parameters describe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from inferplane.layers.ops import bind_ops
from inferplane.runner import sampler as sampler_module
from inferplane.runner.sampler import Sampler
from inferplane_api.reference.ops import gumbel_noise
from inferplane_api.sampling import SamplingParams
from inferplane_api.step import NewRequest, SampleInputs

OPS = bind_ops((), lambda component: None)
EOS = 1


def make_sampler(requests: list[NewRequest], vocab: int) -> Sampler:
    sampler = Sampler(OPS, 1 + max(request.slot for request in requests), vocab, torch.device("cpu"))
    for request in requests:
        sampler.add(request)
    return sampler


def new(slot: int, params: SamplingParams, seed: int = 0, prompt: Any = (0,), output: Any = ()) -> NewRequest:
    return NewRequest(
        slot=slot,
        request_id=str(slot),
        token_ids=[*prompt, *output],
        num_prompt_tokens=len(prompt),
        params=params,
        seed=seed,
        eos_token_ids=(EOS,),
    )


def draw(sampler: Sampler, logits: Any, slots: Any, positions: Any, inputs: SampleInputs | None = None) -> list[int]:
    tensor = torch.as_tensor(np.asarray(logits), dtype=torch.float32)
    slots, positions = np.asarray(slots, np.int64), np.asarray(positions, np.int64)
    return sampler.sample(tensor, slots, positions, inputs).tokens.tolist()


class Ambiguous(Exception):
    """The oracle's answer hangs on less than float32 can tell."""


def demand_margin(difference: float, least: float) -> None:
    if difference < least:
        raise Ambiguous


def edited(logits: np.ndarray, request: NewRequest, position: int, allowed: np.ndarray | None = None) -> np.ndarray:
    """float64 logits after bias, masks, bad words and penalties."""
    params, out = request.params, logits.astype(np.float64).copy()
    for token, bias in (params.logit_bias or {}).items():
        out[token] += bias
    mask = np.ones(len(out), bool)
    if params.allowed_token_ids is not None:
        mask[:] = False
        mask[list(params.allowed_token_ids)] = True
    if position < params.min_tokens:
        mask[[EOS, *params.stop_token_ids]] = False
    if allowed is not None:
        mask &= allowed
    for *prefix, last in params.bad_words_token_ids:
        before = request.token_ids[request.num_prompt_tokens :]
        if before[len(before) - len(prefix) :] == prefix and len(before) >= len(prefix):
            mask[last] = False
    out[~mask] = -np.inf
    output = request.token_ids[request.num_prompt_tokens :]
    counts = np.bincount(output, minlength=len(out)) if output else np.zeros(len(out))
    seen = counts > 0
    seen[request.token_ids[: request.num_prompt_tokens]] = True
    repeated = np.where(out > 0, out / params.repetition_penalty, out * params.repetition_penalty)
    out = np.where(seen, repeated, out)
    return out - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


def kept(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(scaled logits, which may be drawn): temperature, min_p, top_k, top_p in this order; ties by id."""
    scaled = logits / max(params.temperature, 0.01)
    weights = np.exp(scaled - scaled.max())
    keep = weights >= params.min_p
    order = np.lexsort((np.arange(len(scaled)), -scaled))
    if params.top_k > 0:
        keep[order[params.top_k :]] = False
    remaining = np.where(keep, weights, 0)[order]
    share = np.cumsum(remaining) / remaining.sum()
    if params.top_p < 1:
        keep[order[1:][share[:-1] >= params.top_p]] = False
        demand_margin(np.abs(share - params.top_p).min(), 2e-6)
    if params.min_p > 0:
        demand_margin(np.abs(weights - params.min_p).min(), 1e-6)
    return scaled, keep


def oracle(logits: np.ndarray, request: NewRequest, position: int, allowed: np.ndarray | None = None) -> int:
    processed = edited(logits, request, position, allowed)
    if request.params.greedy:
        return int(processed.argmax())
    scaled, keep = kept(processed, request.params)
    seed = torch.tensor([np.uint64(request.seed).astype(np.int64)])
    noise = gumbel_noise(seed, torch.tensor([position]), torch.arange(len(logits))[None])[0].double().numpy()
    scores = np.sort(np.where(keep, scaled + noise, -np.inf))
    demand_margin(scores[-1] - scores[-2] if keep.sum() > 1 else np.inf, 1e-5)
    return int(np.where(keep, scaled + noise, -np.inf).argmax())


@st.composite
def parameters(draw: Any, vocab: int) -> SamplingParams:
    tokens = st.integers(0, vocab - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, -1, 1, 3, 20, vocab - 1, vocab + 5])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.7])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.4, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.6, -1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.1])),
        logit_bias=draw(st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -2.5, 1.5, 4.0]), max_size=4)),
        allowed_token_ids=draw(st.none() | st.lists(tokens, min_size=2, max_size=20, unique=True).map(tuple)),
        stop_token_ids=draw(st.sampled_from([(), (2, 4)])),
        min_tokens=draw(st.sampled_from([0, 3])),
        bad_words_token_ids=draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)).map(tuple)),
        max_tokens=10,
    )


def random_logits(random: np.random.Generator, rows: int, vocab: int, ties: bool) -> np.ndarray:
    logits = random.normal(0, 3, (rows, vocab)).astype(np.float32)
    return np.round(logits * 2) / 2 if ties else logits


@settings(max_examples=150, deadline=None)
@given(data=st.data(), vocab=st.sampled_from([24, 65]), ties=st.booleans(), seed=st.integers(0, 2**63))
def test_each_row_of_a_batch_is_what_the_oracle_draws(data: Any, vocab: int, ties: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = data.draw(st.integers(1, 5))
    logits = random_logits(random, rows, vocab, ties)
    slots = random.permutation(rows + 2)[:rows]
    requests, positions = [], random.integers(0, 6, rows)
    for slot in slots.tolist():
        prompt, output = random.integers(0, vocab, 5).tolist(), random.integers(0, vocab, 4).tolist()
        output += random.integers(0, 4, 2).tolist()  # so that bad words meet their beginnings
        request_seed = int(random.integers(0, 2**64, dtype=np.uint64))
        requests.append(new(slot, data.draw(parameters(vocab)), request_seed, prompt, output))
    if any(np.isneginf(edited(logits[i], requests[i], int(positions[i]))).all() for i in range(rows)):
        reject()
    try:
        expected = [oracle(logits[i], requests[i], int(positions[i])) for i in range(rows)]
    except Ambiguous:
        reject()
    assert draw(make_sampler(requests, vocab), logits, slots, positions) == expected


@pytest.mark.parametrize("spread", [0.01, 3.0])
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_nucleus_is_found_in_a_large_vocabulary_however_flat(spread: float, synchronous: bool) -> None:
    """spread 0.01: the nucleus is larger than the first look at it; synchronous False: sorted at once."""
    random, vocab, rows = np.random.default_rng(5), 3000, 6
    logits = (random.normal(0, spread, (rows, vocab))).astype(np.float32)
    params = [
        SamplingParams(top_p=0.8, min_p=min_p, top_k=top_k) for min_p, top_k in ((0, 0), (0.1, 0), (0.0, 2000)) * 2
    ]
    requests = [new(i, params[i], seed=i) for i in range(rows)]
    sampler = make_sampler(requests, vocab)
    sampler._synchronous = synchronous
    expected = [oracle(logits[i], requests[i], 0) for i in range(rows)]
    assert draw(sampler, logits, range(rows), np.zeros(rows)) == expected


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2),
        SamplingParams(temperature=1.5, top_k=9, top_p=0.8, min_p=0.05),
        SamplingParams(repetition_penalty=1.7),
        SamplingParams(frequency_penalty=0.4),
        SamplingParams(presence_penalty=-0.8),
        SamplingParams(logit_bias={2: 1.5, 5: -0.7}),
        SamplingParams(allowed_token_ids=(1, 4, 6, 9)),
        SamplingParams(min_tokens=4, stop_token_ids=(3, 7)),
        SamplingParams(bad_words_token_ids=((8,), (4, 6), (5, 9), (4, 4, 10))),
        SamplingParams(
            temperature=0.8,
            top_p=0.9,
            repetition_penalty=1.2,
            frequency_penalty=0.2,
            presence_penalty=0.3,
            logit_bias={0: 1.0},
            bad_words_token_ids=((4, 6),),
            min_tokens=4,
        ),
    ],
    ids=[
        "plain", "cold", "top_k", "top_p", "min_p", "filters", "repetition", "frequency", "presence", "bias", "allowed",
        "min_tokens", "bad_words", "all",
    ],
)  # fmt: skip
def test_frequencies_over_many_seeds_are_the_distribution(params: SamplingParams) -> None:
    vocab, draws, prompt, output = 12, 6000, [0, 11], [2, 4, 4]
    raw = np.random.default_rng(3).normal(0, 0.6, vocab)
    position = len(output)
    logits = edited(raw, new(0, params, 0, prompt, output), position)
    scaled, keep = kept(logits, params)
    keep &= np.isfinite(logits)
    assert keep.sum() > 1
    probabilities = np.where(keep, np.exp(scaled - scaled.max()), 0)
    probabilities /= probabilities.sum()
    sampler = make_sampler([new(i, params, 7919 * i, prompt, output) for i in range(draws)], vocab)
    logits = raw
    tokens = draw(sampler, np.tile(logits, (draws, 1)), np.arange(draws), np.full(draws, position))
    counts = np.bincount(tokens, minlength=vocab)
    assert counts[~keep].sum() == 0
    expected = probabilities[keep] * draws
    assert expected.min() > 5
    statistic = ((counts[keep] - expected) ** 2 / expected).sum()
    # the 99.99 % quantile of chi-square, Wilson and Hilferty's approximation; seeds are fixed, so this cannot flake
    freedom = max(1, int(keep.sum()) - 1)
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3


def test_positions_draw_independently() -> None:
    vocab, draws = 8, 4000
    sampler = make_sampler([new(0, SamplingParams(), seed=99)], vocab)
    tokens = draw(sampler, np.zeros((draws, vocab)), np.zeros(draws), np.arange(draws))
    pairs = np.bincount(np.array(tokens[:-1]) * vocab + np.array(tokens[1:]), minlength=vocab * vocab)
    expected = (draws - 1) / vocab**2
    assert ((pairs - expected) ** 2 / expected).sum() < 63 + 3.719 * np.sqrt(2 * 63) + 10


def test_the_candidate_path_draws_what_the_full_path_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """top_k of the whole vocabulary but one, against no top_k with that one masked out."""
    vocab, rows = 40, 200
    logits = np.round(np.random.default_rng(0).normal(0, 2, (rows, vocab)) * 4) / 4
    lowest = [int(np.lexsort((np.arange(vocab), -row))[-1]) for row in logits]
    candidates = make_sampler([new(i, SamplingParams(top_k=vocab - 1), seed=i) for i in range(rows)], vocab)
    masked = [SamplingParams(allowed_token_ids=tuple(t for t in range(vocab) if t != low)) for low in lowest]
    full = make_sampler([new(i, masked[i], seed=i) for i in range(rows)], vocab)
    tokens = draw(candidates, logits, range(rows), np.zeros(rows))
    assert tokens == draw(full, logits, range(rows), np.zeros(rows))
    monkeypatch.setattr(sampler_module, "MAX_CANDIDATES", 8)
    assert tokens == draw(candidates, logits, range(rows), np.zeros(rows))


def test_a_request_draws_the_same_whoever_its_neighbours_are() -> None:
    random, vocab = np.random.default_rng(1), 300
    kinds = [
        SamplingParams(top_k=5),
        SamplingParams(top_k=50, top_p=0.8),
        SamplingParams(top_p=0.9),
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(min_p=0.01),
    ]
    requests = [new(i, kinds[i % len(kinds)], seed=i) for i in range(24)]
    sampler = make_sampler(requests, vocab)
    logits = np.round(random.normal(0, 2, (24, vocab)))
    alone = [draw(sampler, logits[i : i + 1], [i], [i])[0] for i in range(24)]
    for _ in range(5):
        order = random.permutation(24)[: random.integers(2, 25)]
        assert draw(sampler, logits[order], order, order) == [alone[i] for i in order]


def test_penalties_follow_the_tokens_that_were_drawn() -> None:
    vocab = 30
    params = SamplingParams(temperature=0, repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.3)
    logits = np.random.default_rng(2).normal(1, 0.5, vocab)
    sampler = make_sampler([new(slot, params, prompt=[3, 4]) for slot in (0, 6)], vocab)
    output: list[int] = []
    for position in range(12):
        expected = int(edited(logits, new(0, params, prompt=[3, 4], output=output), position).argmax())
        assert draw(sampler, [logits, logits], [6, 0], [position] * 2) == [expected] * 2
        output.append(expected)
    assert len(set(output)) > 3
    sampler.remove(6)
    sampler.add(new(2, params, prompt=[3, 4]))
    assert draw(sampler, [logits], [2], [0]) == output[:1], "a reused row starts from zero"


def test_a_bitmask_forbids_tokens_of_its_rows_only() -> None:
    vocab, rows = 70, 3
    logits = np.random.default_rng(4).normal(0, 1, (rows, vocab))
    allowed = np.zeros(vocab, bool)
    allowed[[33, 64, 69]] = True
    words = np.zeros(3, np.uint32)
    for token in np.flatnonzero(allowed):
        words[token // 32] |= np.uint32(1 << (token % 32))
    requests = [new(i, SamplingParams(temperature=0.0 if i else 1.0), seed=i) for i in range(rows)]
    inputs = SampleInputs(bitmask_rows=[0, 2], bitmask=np.tile(words, 2).tobytes())
    tokens = draw(make_sampler(requests, vocab), logits, range(rows), np.zeros(rows), inputs)
    assert tokens == [oracle(logits[i], requests[i], 0, None if i == 1 else allowed) for i in range(rows)]
    assert {tokens[0], tokens[2]} <= {33, 64, 69}


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=3, top_p=0.5)]
)
def test_corrupted_rows_are_flagged_and_leave_the_others_alone(params: SamplingParams) -> None:
    vocab = 20
    logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(0))
    clean = logits.clone()
    logits[0, 7], logits[2], logits[3, 4] = torch.nan, -torch.inf, torch.inf
    sampler = make_sampler([new(i, params, seed=i) for i in range(5)], vocab)
    result = sampler.sample(logits, np.arange(5), np.zeros(5, np.int64))
    assert result.corrupted.tolist() == [True, False, True, True, False]
    expected = draw(sampler, clean, range(5), np.zeros(5))
    assert [result.tokens[i].item() for i in (1, 4)] == [expected[1], expected[4]]
    assert all(0 <= token < vocab for token in result.tokens.tolist())


def test_nothing_allowed_is_corrupted() -> None:
    params = SamplingParams(temperature=0, allowed_token_ids=(EOS,), min_tokens=2)
    sampler = make_sampler([new(0, params)], 20)
    assert sampler.sample(torch.zeros(1, 20), np.array([0]), np.array([0])).corrupted.tolist() == [True]
    assert sampler.sample(torch.zeros(1, 20), np.array([0]), np.array([2])).corrupted.tolist() == [False]


def test_logprobs_are_of_the_raw_logits() -> None:
    random, vocab = np.random.default_rng(6), 40
    logits = np.round(random.normal(0, 2, (4, vocab)))
    params = [
        SamplingParams(temperature=0.3, logprobs=2, logit_bias={5: 50.0}),
        SamplingParams(temperature=0),
        SamplingParams(logprobs=0, top_k=2),
        SamplingParams(logprobs=-1, repetition_penalty=2.0),
    ]
    sampler = make_sampler([new(i, p, seed=i) for i, p in enumerate(params)], vocab)
    result = sampler.sample(torch.tensor(logits, dtype=torch.float32), np.arange(4), np.zeros(4, np.int64))
    assert result.logprob_rows.tolist() == [0, 2, 3]
    from inferplane.runner.logprobs import read_logprobs

    assert result.logprobs is not None
    for row, entry in zip((0, 2, 3), read_logprobs(result.logprobs), strict=True):
        token = result.tokens[row].item()
        expected = logits[row] - np.log(np.exp(logits[row]).sum())
        order = np.lexsort((np.arange(vocab), -expected))
        width = {0: 2, 2: 0, 3: vocab}[row]
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        assert entry.rank == 1 + (expected > expected[token]).sum()
        assert entry.top_ids == order[:width].tolist()
        assert entry.top_logprobs == pytest.approx(expected[order[:width]].tolist(), abs=1e-5)
    assert result.tokens[0].item() == 5


def test_a_large_seed_is_taken_as_64_bits() -> None:
    vocab = 50
    requests = [new(0, SamplingParams(), seed=2**64 - 1), new(1, SamplingParams(), seed=2**63)]
    logits = np.zeros((2, vocab))
    assert draw(make_sampler(requests, vocab), logits, [0, 1], [0, 0]) == [
        oracle(logits[i], requests[i], 0) for i in (0, 1)
    ]


def scores_of(sampler: Sampler, logits: np.ndarray, position: int = 0) -> tuple[Any, list[Any]]:
    from inferplane.runner.logprobs import read_logprobs

    slots = np.arange(len(logits))
    result = sampler.sample(torch.tensor(logits, dtype=torch.float32), slots, np.full(len(logits), position))
    assert result.logprobs is not None
    return result, read_logprobs(result.logprobs)


MODES: tuple[Any, ...] = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_reports_what_its_name_says(mode: Any) -> None:
    random, vocab = np.random.default_rng(8), 30
    logits = np.round(random.normal(0, 2, (5, vocab)) * 8) / 8
    params = [
        SamplingParams(temperature=0.7, top_k=6, logprobs=-1, logprobs_mode=mode),
        SamplingParams(temperature=1.3, top_p=0.8, min_p=0.02, logprobs=-1, logprobs_mode=mode),
        SamplingParams(temperature=0, logit_bias={3: 2.0}, logprobs=-1, logprobs_mode=mode),
        SamplingParams(bad_words_token_ids=((int(logits[3].argmax()),),), logprobs=-1, logprobs_mode=mode),
        SamplingParams(logprobs=-1),
    ]
    requests = [new(i, each, seed=i) for i, each in enumerate(params)]
    result, entries = scores_of(make_sampler(requests, vocab), logits)
    for row, (request, entry) in enumerate(zip(requests, entries, strict=True)):
        values = logits[row].astype(np.float64)
        row_mode = request.params.logprobs_mode or "raw_logprobs"
        if row_mode.startswith("processed"):
            values = edited(logits[row], request, 0)
            if not request.params.greedy:
                scaled, keep = kept(values, request.params)
                values = np.where(keep, scaled, -np.inf)
        if row_mode.endswith("logprobs"):
            values = values - values.max() - np.log(np.exp(values - values.max()).sum())
        order = np.lexsort((np.arange(vocab), -values))
        assert entry.token_id == result.tokens[row].item()
        assert entry.top_ids == order.tolist()
        assert entry.top_logprobs == pytest.approx(values[order].tolist(), abs=1e-5)
        assert entry.logprob == pytest.approx(values[entry.token_id], abs=1e-5)
        assert entry.rank == 1 + (values > values[entry.token_id]).sum()


def test_named_tokens_are_reported_beside_the_likely_ones() -> None:
    vocab = 25
    logits = np.random.default_rng(9).normal(0, 2, (3, vocab))
    params = [
        SamplingParams(logprobs=1, logprob_token_ids=(7, 3)),
        SamplingParams(logprobs=2),
        SamplingParams(temperature=0, logprob_token_ids=(0,)),
    ]
    _, entries = scores_of(make_sampler([new(i, p, seed=i) for i, p in enumerate(params)], vocab), logits)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert [entry.listed_ids for entry in entries] == [[7, 3], [], [0]]
    assert entries[0].listed_logprobs == pytest.approx(expected[0, [7, 3]].tolist(), abs=1e-5)
    assert entries[2].listed_logprobs == pytest.approx(expected[2, [0]].tolist(), abs=1e-5)
    assert [len(entry.top_ids) for entry in entries] == [1, 2, 0]


def test_bad_words_follow_the_tokens_that_were_drawn() -> None:
    """Greedy over constant logits: the ban decides every token. A slot's successor knows nothing of its past."""
    vocab = 6
    logits = np.array([0.0, 0, 3, 2, 1, 0])
    words = ((2, 2), (3, 2, 3), (2, 3, 4))
    params = SamplingParams(temperature=0, bad_words_token_ids=words)
    requests = [new(slot, params, prompt=[2, 2]) for slot in (0, 3)]
    sampler = make_sampler([*requests, new(1, SamplingParams(temperature=0))], vocab)
    output: list[int] = []
    for position in range(14):
        expected = int(edited(logits, new(0, params, prompt=[2, 2], output=output), position).argmax())
        assert draw(sampler, [logits] * 3, [3, 1, 0], [position] * 3) == [expected, 2, expected]
        output.append(expected)
    text = "".join(map(str, output))
    assert text[:2] == "23", "the prompt does not count"
    assert not any("".join(map(str, word)) in text for word in words)
    sampler.remove(3)
    sampler.add(new(3, SamplingParams(temperature=0, bad_words_token_ids=((2, 2, 2, 2),))))
    assert [draw(sampler, [logits], [3], [i])[0] for i in range(5)] == [2, 2, 2, 3, 2]
    resumed = make_sampler([new(0, params, prompt=[2, 2], output=output[:7])], vocab)
    assert draw(resumed, [logits], [0], [7]) == [output[7]], "as before the preemption"
