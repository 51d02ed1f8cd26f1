"""The bodies of an embedding request, and the shapes of its answer; knows no tokenizer and no engine."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field

from inferplane.server.responses import Usage
from inferplane.server.schema import Body, CacheSalt, Conversation, Int, Prompts, RequestId


class EmbeddingOptions(Body):
    """The fields beside what is embedded."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "truncation_side": ("right",),
        "mm_processor_kwargs": ({},),
    }
    """Fields of features that are not there, with the values (None besides) that ask for nothing."""

    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    priority: Int | None = None
    request_id: RequestId = None
    cache_salt: CacheSalt = None
    user: str | None = None

    embed_dtype: Any = None
    endianness: Any = None
    truncation_side: Any = None
    mm_processor_kwargs: Any = None


class EmbeddingBody(EmbeddingOptions):
    """POST /v1/embeddings with texts or tokens."""

    input: Prompts = None
    add_special_tokens: bool = True


class EmbeddingChatBody(Conversation, EmbeddingOptions):
    """POST /v1/embeddings with a conversation: the template's text is embedded."""

    add_special_tokens: bool = False


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One vector: numbers, or base64 of little-endian float32."""

    index: int
    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """One vector for each input, in their order."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: Usage
