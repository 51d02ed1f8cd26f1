"""GET /v1/models: the names under which the model is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from inferplane.server.validation import check_model

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext


class ModelPermission(msgspec.Struct, frozen=True, kw_only=True):
    """What older clients of OpenAI look for."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "inferplane"
    root: str
    """What the user called the model when the server started."""
    parent: str | None = None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All names, the first is the one in answers."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def list_models(context: ServerContext) -> ModelList:
    """Every name."""
    return ModelList(data=[_card(context, name) for name in context.prepared.served_names])


def one_model(context: ServerContext, name: str) -> ModelCard:
    """Raises ApiError 404."""
    return _card(context, check_model(name, context.prepared.served_names))


def _card(context: ServerContext, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=context.created,
        root=context.prepared.config.model.model,
        max_model_len=context.max_model_len,
        permission=[ModelPermission(id=f"modelperm-{name}", created=context.created)],
    )
