"""Fixtures shared by all tests: tiny checkpoints made on the spot, and the real models that packages ship."""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before anything loads an OpenMP runtime: the workers already fill the cores, and child processes inherit this.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[1]

VOCAB_SIZE = 320
"""256 bytes, three special tokens, some merges, and a few ids without a token, as real models have."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
"""Random weights wide enough that a greedy choice has a margin."""

_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {
        "num_hidden_layers": 6,
        "sliding_window": 32,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
}


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    """The logger as it was before the test: a command that runs in this process sets its level, its handler and that it
    does not propagate, and pytest listens to such a logger twice."""
    logger = logging.getLogger("inferplane")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagate, handlers


@pytest.fixture(scope="session")
def resident_bytes() -> Callable[[Path], int]:
    """`resident_bytes(file)`: bytes of the file's mappings that are in this process's memory, as Linux counts them."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("only Linux tells what of a mapping is in memory")

    def count(file: Path) -> int:
        resident, ours = 0, False
        for line in smaps.read_text().splitlines():
            if not line.partition(" ")[0].endswith(":"):
                ours = line.endswith(f" {file}")
            elif ours and line.startswith("Rss:"):
                resident += int(line.split()[1]) * 1024
        return resident

    return count


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def install_wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Path], None]:
    """`install_wheel(source, site)`: build a wheel from a copy of a project's folder and unpack it, as pip does."""
    built: dict[Path, Path] = {}

    def install(source: Path, site: Path) -> None:
        if source not in built:
            folder = tmp_path_factory.mktemp("wheel")
            shutil.copytree(source, folder / "copy", ignore=shutil.ignore_patterns("__pycache__"))
            command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
            subprocess.run(command, cwd=folder / "copy", check=True, capture_output=True, timeout=120)
            (built[source],) = folder.glob("*.whl")
        with zipfile.ZipFile(built[source]) as wheel:
            wheel.extractall(site)
        importlib.invalidate_caches()

    return install


@pytest.fixture(scope="session")
def make_tiny_tokenizer() -> Callable[[Path], None]:
    """Write a byte-level BPE tokenizer with a few merges and a chat template into a folder."""
    return _write_tokenizer


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_checkpoint(model_type, **config) -> Path`: a random checkpoint as `transformers` saves it, in float32."""
    made: dict[str, Path] = {}

    def make(model_type: str = "llama", **overrides: Any) -> Path:
        key = model_type + json.dumps(overrides, sort_keys=True, default=str)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"tiny-{model_type}")
            _write_model(folder, model_type, overrides)
            _write_tokenizer(folder)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_llama_dir(tiny_checkpoint: Callable[..., Path]) -> Path:
    """A random Llama of two layers with a tokenizer and a chat template."""
    return tiny_checkpoint("llama")


@pytest.fixture(scope="session")
def tiny_qwen3_dir(tiny_checkpoint: Callable[..., Path]) -> Path:
    """A random Qwen3 of two layers."""
    return tiny_checkpoint("qwen3")


@pytest.fixture(scope="session")
def tiny_gemma3_dir(tiny_checkpoint: Callable[..., Path]) -> Path:
    """A random hybrid model: five layers with a window of 32 tokens, one without."""
    return tiny_checkpoint("gemma3_text")


def _write_model(folder: Path, model_type: str, overrides: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**_SMALL, **_FAMILIES.get(model_type, {}), **overrides})
    state = torch.random.get_rng_state()
    torch.manual_seed(len(model_type))
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    finally:
        torch.random.set_rng_state(state)
    model.save_pretrained(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: index for index, token in enumerate(special)}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("an", "d"), ("Ġ", "the"), ("e", "r"), ("o", "n")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[0],
        "eos_token": special[2],
        "pad_token": special[0],
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _real_model(alias: str) -> Path:
    from inferplane.config import Config
    from inferplane.sources.resolve import resolve_source

    return resolve_source(Config.from_flat({"model": alias}).model).path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded default model as a GGUF file; fetched once, then cached. Unreachable is a failure, not a skip."""
    return _real_model("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """A hybrid model with trained weights as a GGUF file; fetched once, then cached."""
    return _real_model("gemma3-270m")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """An encoder with trained weights, a folder with sentence-transformers' files; fetched once, then cached."""
    return _real_model("minilm")
