"""GET /v1/models: the names under which the model is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplane.server.validation import check_model

if TYPE_CHECKING:
    from inferplane.server.context import ServerContext


def list_models(context: ServerContext) -> dict[str, Any]:
    """Every name, the first is the one in answers."""
    return {"object": "list", "data": [_card(context, name) for name in context.prepared.served_names]}


def one_model(context: ServerContext, name: str) -> dict[str, Any]:
    """Raises ApiError 404."""
    return _card(context, check_model(name, context.prepared.served_names))


def _card(context: ServerContext, name: str) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": context.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": context.created,
        "owned_by": "inferplane",
        "root": context.prepared.config.model.model,
        "parent": None,
        "max_model_len": context.max_model_len,
        "permission": [permission],
    }
