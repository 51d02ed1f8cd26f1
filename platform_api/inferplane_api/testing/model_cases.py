"""Area "model": a tiny random model through core, on the platform and on the reference platform: the same tokens."""

from __future__ import annotations

import gc
import json
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from inferplane_api.testing.attention_matrix import head_sizes
from inferplane_api.testing.buckets import most_rows
from inferplane_api.testing.case import Case, Lie, NotTested, require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from inferplane_api.testing.declarations import Declarations
    from inferplane_api.testing.kit import Kit

VOCAB = 256
NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 2, 4, 2
NEW_TOKENS = 12
MAX_MODEL_LEN = 512
MAX_POSITION = 16384
NUM_SEQUENCES = 4
PROMPT_LENGTHS = (1, 3, 16, 29, 40, 61)

LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.05}
"""Most that the log-probability of the same token may differ from the reference platform's."""

CLOSE_CALL = {"float32": 0.0, "bfloat16": 0.6, "float16": 0.1}
"""Where the reference's two best tokens are closer than this, a 16-bit platform may choose the other one, and what
follows is not compared."""


class Answer(NamedTuple):
    """What one request gave."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float]
    """Between the two most likely tokens."""


def cases(declarations: Declarations) -> list[Case]:
    """Greedy answers at level core; chunked, preempted and from the prefix cache at level full."""
    name = declarations.platform
    variants = {
        "tokens": ("core", _check_tokens),
        "chunked": ("full", _check_chunked),
        "prefix-cache": ("full", _check_prefix),
        "preempted": ("full", _check_preempted),
    }
    return [
        Case(
            area="model",
            name=variant,
            level=level,
            claim=f"{name} gives the reference platform's tokens ({variant})",
            run=partial(_with_core, check),
        )
        for variant, (level, check) in variants.items()
    ]


def _with_core(check: Any, kit: Kit) -> None:
    _ = kit.device  # raises NotTested without one
    if find_spec("inferplane") is None:
        raise NotTested("core is not installed: pip install inferplane", elsewhere=True)
    kit.close()  # a process has one platform object at a time, and core makes its own
    check(kit)
    gc.collect()


def _check_tokens(kit: Kit) -> None:
    prompts = [_prompt(length) for length in PROMPT_LENGTHS]
    with _model(kit) as model:
        _compare(kit, _generate(model, prompts), prompts, "batched")
        _compare(kit, _generate(model, prompts[3:4]), prompts[3:4], "alone")


def _check_chunked(kit: Kit) -> None:
    prompts = [_prompt(150), _prompt(90)]
    scheduling = kit.spec.scheduling
    buckets = [bucket for bucket in scheduling.token_buckets if bucket >= NUM_SEQUENCES]
    budget = min([*buckets, scheduling.max_batched_tokens or 32, 32])
    with _model(kit, max_num_batched_tokens=budget) as model:
        _compare(kit, _generate(model, prompts), prompts, "in chunks")


def _check_prefix(kit: Kit) -> None:
    with _model(kit) as model:
        page = max((group.tokens_per_page for group in model.plan.geometry.groups), default=16)
        prompt = _prompt(page + page // 2)
        for how in ("for the first time", "from the prefix cache"):
            _compare(kit, _generate(model, [prompt]), [prompt], how)
        if not model.plan.prefix_caching:
            raise NotTested("the platform switches prefix caching off")
        require(model.stats().prefix_cache_hits > 0, f"{kit.spec.name}: the second time nothing came from the cache")


def _check_preempted(kit: Kit) -> None:
    with _model(kit) as model:
        sizes = [group.tokens_per_page for group in model.plan.geometry.groups]
    if len(sizes) != 1:
        raise NotTested("the platform has no page table of core's")
    page = sizes[0]
    prompts = [_prompt(max(page, 16) - 4, seed) for seed in range(NUM_SEQUENCES)]
    longest = -(-(len(prompts[0]) + NEW_TOKENS) // page)
    with _model(kit, num_pages_override=1 + longest * 2 + 1, max_model_len=len(prompts[0]) + NEW_TOKENS) as model:
        _compare(kit, _generate(model, prompts), prompts, "preempted")
        if not model.stats().num_preemptions:
            raise NotTested("the small pool preempted nothing; the tokens are right")


def _prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids from a fixed congruential sequence."""
    state, ids = 12345 + 977 * length + seed, []
    for _ in range(length):
        state = (1103515245 * state + 12345) % 2**31
        ids.append((state >> 8) % VOCAB)
    return ids


def _model(kit: Kit, *, platform: str | None = None, **settings: Any) -> Any:
    from inferplane import LLM

    declarations = kit.declarations
    names = {declarations.plugin.name, declarations.owner.name} - {"inferplane"}
    return LLM(
        str(checkpoint(kit)),
        platform=platform or declarations.platform,
        plugins=tuple(sorted(names)),
        dtype=compute_dtype(kit),
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


def _generate(model: Any, prompts: Sequence[list[int]]) -> list[Answer]:
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


def _compare(kit: Kit, answers: list[Answer], prompts: Sequence[list[int]], how: str) -> None:
    """Raise Lie at the first token that is not the reference platform's."""
    dtype = compute_dtype(kit)
    for got, want, prompt in zip(answers, _truth(kit, prompts), prompts, strict=True):
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


def _truth(kit: Kit, prompts: Sequence[list[int]]) -> list[Answer]:
    """The reference platform's answers, each prompt by itself, computed once a prompt."""
    known: dict[str, Answer] = kit.remembered
    missing = [prompt for prompt in prompts if str(prompt) not in known]
    if missing:
        with _model(kit, platform="reference") as model:
            for prompt in missing:
                known[str(prompt)] = _generate(model, [prompt])[0]
    return [known[str(prompt)] for prompt in prompts]


def checkpoint(kit: Kit) -> Path:
    """A random Llama in the run's folder, with heads of a size that the platform's attention declares."""
    folder = kit.folder / "model"
    if not folder.exists():
        folder.mkdir(parents=True)
        _write(folder, _head_size(kit))
    return folder


def _head_size(kit: Kit) -> int:
    declared = [size for spec in kit.declarations.attention() for size in head_sizes(spec)]
    return min((size for size in declared if size >= 16 and size % 2 == 0), default=64)


def _write(folder: Path, head_size: int) -> None:
    import torch
    from safetensors.torch import save_file

    hidden, wide = NUM_HEADS * 16, 128
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": head_size,
        "max_position_embeddings": MAX_POSITION,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    weights = {"model.embed_tokens.weight": normal(VOCAB, hidden), "lm_head.weight": normal(VOCAB, hidden)}
    weights["model.norm.weight"] = 1 + normal(hidden)
    for index in range(NUM_LAYERS):
        shapes = {
            "self_attn.q_proj": (NUM_HEADS * head_size, hidden),
            "self_attn.k_proj": (NUM_KV_HEADS * head_size, hidden),
            "self_attn.v_proj": (NUM_KV_HEADS * head_size, hidden),
            "self_attn.o_proj": (hidden, NUM_HEADS * head_size),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        prefix = f"model.layers.{index}"
        weights.update({f"{prefix}.{name}.weight": normal(*shape) for name, shape in shapes.items()})
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = 1 + normal(hidden)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
