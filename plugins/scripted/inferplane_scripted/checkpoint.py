"""Writes a tiny checkpoint that the scripted platform and the bigram model both run; knows the file formats only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 256, 257 and 258; an id below 256 is that byte."""
EOS = 256
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_checkpoint(
    path: Path,
    *,
    table: npt.NDArray[np.float32] | None = None,
    words: Sequence[str] = (),
    max_position: int = 2048,
    chat_template: str | None = CHAT_TEMPLATE,
    generation_config: dict[str, Any] | None = None,
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json to the folder `path`; return it.

    table: [V, V] float32 with V = VOCAB_SIZE + len(words): the logits after each token; by default the next id has
    logit 8 and every other 0. words: tokens of more than one byte, with the ids from VOCAB_SIZE on; output only, the
    tokenizer never produces them. Needs the extra "checkpoint" (numpy, safetensors, tokenizers).
    """
    import numpy as np
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    size = VOCAB_SIZE + len(words)
    if table is None:
        table = np.zeros((size, size), dtype=np.float32)
        table[np.arange(size), (np.arange(size) + 1) % size] = 8.0
    if table.shape != (size, size):
        raise ValueError(f"table must be [{size}, {size}], is {list(table.shape)}")
    save_file(
        {"table": np.ascontiguousarray(table, dtype=np.float32)}, str(path / "model.safetensors"), {"format": "pt"}
    )
    config = {
        "architectures": ["ScriptedBigramForCausalLM"],
        "model_type": "scripted_bigram",
        "vocab_size": size,
        "hidden_size": size,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": max_position,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": EOS,
    }
    _write_json(path / "config.json", config)
    if generation_config is not None:
        _write_json(path / "generation_config.json", generation_config)
    tokenizer_config: dict[str, Any] = {"bos_token": None, "eos_token": SPECIAL_TOKENS[0], "add_bos_token": False}
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    _write_json(path / "tokenizer_config.json", tokenizer_config)
    (path / "tokenizer.json").write_text(byte_tokenizer(words))
    return path


def byte_tokenizer(words: Sequence[str] = ()) -> str:
    """A tokenizer.json in which byte b has the id b, then the special tokens, then the given words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = _letters_of_bytes()
    vocab = {letter: byte for byte, letter in enumerate(letters)}
    vocab.update({token: 256 + index for index, token in enumerate(SPECIAL_TOKENS)})
    vocab.update(
        {"".join(letters[byte] for byte in word.encode()): VOCAB_SIZE + index for index, word in enumerate(words)}
    )
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    text: str = tokenizer.to_str(pretty=False)
    return text


def _letters_of_bytes() -> list[str]:
    """GPT-2's printable letter of every byte: printable Latin-1 stands for itself, the rest starts at U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters: list[str] = []
    shifted = 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(0x100 + shifted))
            shifted += 1
    return letters


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))
