"""One run of a tiny random model through core, and its comparison with the reference platform's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane_api.testing.attention_matrix import head_sizes
from inferplane_api.testing.buckets import most_rows
from inferplane_api.testing.case import Lie, require
from inferplane_api.testing.model_checkpoint import VOCAB, write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from inferplane_api.testing.kit import Kit

NEW_TOKENS = 12
MAX_MODEL_LEN = 512
NUM_SEQUENCES = 4

LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.05}
"""Most that the log-probability of the same token may differ from the reference platform's."""

CLOSE_CALL = {"float32": 0.0, "bfloat16": 0.6, "float16": 0.1}
"""Where the reference's two best tokens are closer than this, a 16-bit platform may choose the other one, and what
follows is not compared."""


class Setup(NamedTuple):
    """Which tiny model is run, in which type, and what is asked for by name."""

    head_size: int
    dtype: str
    window: int | None = None
    attention: str | None = None
    """The id of a backend; None: core chooses."""
    option: tuple[str, str] | None = None
    """(name, value) of a platform's option."""


class Answer(NamedTuple):
    """What one request gave."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float]
    """Between the two most likely tokens."""


def default_setup(kit: Kit) -> Setup:
    """float32 where the device has it, and heads of a size that some attention of the platform declares."""
    sizes = [size for spec in kit.declarations.attention() for size in head_sizes(spec)]
    return Setup(smallest(sizes), compute_dtype(kit))


def smallest(sizes: list[int]) -> int:
    """The smallest of the head sizes that suits a rotary embedding and is not tiny."""
    return min((size for size in sizes if size >= 16 and size % 2 == 0), default=64)


def make_prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids from a fixed congruential sequence."""
    state, ids = 12345 + 977 * length + seed, []
    for _ in range(length):
        state = (1103515245 * state + 12345) % 2**31
        ids.append((state >> 8) % VOCAB)
    return ids


def open_model(kit: Kit, setup: Setup | None = None, *, platform: str | None = None, **settings: Any) -> Any:
    """An `LLM` for the setup, or for the default one, on the platform under test or another; a context manager."""
    from inferplane import LLM

    declarations, setup = kit.declarations, setup or default_setup(kit)
    if platform is None:
        kit.watch()
        settings |= {} if setup.attention is None else {"attention_backend": setup.attention}
        settings |= {} if setup.option is None else {"platform_option": dict([setup.option])}
    names = {declarations.plugin.name, declarations.owner.name} - {"inferplane"}
    return LLM(
        str(_checkpoint(kit, setup)),
        platform=platform or declarations.platform,
        plugins=tuple(sorted(names)),
        dtype=setup.dtype,
        **{
            "max_model_len": max(MAX_MODEL_LEN, 3 * _largest_page(kit)),
            "max_num_seqs": min(NUM_SEQUENCES, most_rows(kit.spec.scheduling)),
            "memory_utilization": 0.5,
            **settings,
        },
    )


def _largest_page(kit: Kit) -> int:
    return max((size for spec in kit.declarations.attention() for size in spec.page_sizes.exact), default=16)


def compute_dtype(kit: Kit) -> str:
    """float32 where the device has it: there, tokens are equal without exceptions."""
    dtypes = kit.device.dtypes
    return "float32" if "float32" in dtypes else sorted(dtypes, reverse=True)[0]


def generate(model: Any, prompts: Sequence[list[int]]) -> list[Answer]:
    """Greedy answers of NEW_TOKENS tokens, all prompts in one batch."""
    from inferplane_api.sampling import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2)
    outputs = model.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    return [_answer(output.outputs[0]) for output in outputs]


def _answer(output: Any) -> Answer:
    logprobs, margins = [], []
    for token, table in zip(output.token_ids, output.logprobs, strict=True):
        values = {key: getattr(value, "logprob", value) for key, value in table.items()}
        best = sorted(values.values(), reverse=True)
        logprobs.append(values[token])
        margins.append(best[0] - best[1])
    return Answer(list(output.token_ids), logprobs, margins)


def _checkpoint(kit: Kit, setup: Setup) -> Path:
    """The model in the run's folder, written once."""
    folder = kit.folder / f"model-{setup.head_size}-{setup.window}"
    if not folder.exists():
        folder.mkdir(parents=True)
        write(folder, setup.head_size, setup.window)
    return folder


def compare(
    kit: Kit, answers: list[Answer], prompts: Sequence[list[int]], how: str, setup: Setup | None = None
) -> None:
    """Raise Lie at the first token that is not the reference platform's."""
    setup = setup or default_setup(kit)
    dtype = setup.dtype
    for got, want, prompt in zip(answers, _truth(kit, prompts, setup), prompts, strict=True):
        what = f"{kit.spec.name} in {dtype}, a prompt of {len(prompt)} tokens {how}"
        require(len(got.tokens) == len(want.tokens), f"{what}: {len(got.tokens)} tokens, not {len(want.tokens)}")
        for index, (token, expected) in enumerate(zip(got.tokens, want.tokens, strict=True)):
            if token != expected:
                if want.margins[index] < CLOSE_CALL[dtype]:
                    break
                raise Lie(f"{what}: token {index} is {token}, the reference platform gives {expected}")
            error = abs(got.logprobs[index] - want.logprobs[index])
            message = f"{what}: the log-probability of token {index} is off by {error:.3g}"
            require(error <= LOGPROB_TOLERANCE[dtype], message)


def _truth(kit: Kit, prompts: Sequence[list[int]], setup: Setup) -> list[Answer]:
    """The reference platform's answers, each prompt by itself, computed once a prompt."""
    setup = setup._replace(attention=None, option=None)
    missing = [prompt for prompt in prompts if (setup, tuple(prompt)) not in kit.truths]
    if missing:
        with open_model(kit, setup, platform="reference") as reference:
            for prompt in missing:
                kit.truths[setup, tuple(prompt)] = generate(reference, [prompt])[0]
    return [kit.truths[setup, tuple(prompt)] for prompt in prompts]
