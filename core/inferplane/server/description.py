"""The OpenAPI document: bodies, answers and errors of every route, from the types that the routes work with.

Knows no route: each says what it takes and gives, see `Description.route`.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

_REF = "#/components/schemas/{name}"
_PROBLEMS = {
    400: "A value is not valid; `param` names the field.",
    401: "A key is missing or wrong.",
    403: "The request comes from a web page of another origin, and the server has no key.",
    404: "No such model.",
    413: "The body is too large.",
    415: "The body is no plain JSON.",
    429: "Too much is waiting; `Retry-After` says for how long to stay away.",
    500: "The server failed; `message` has the id under which its log tells more.",
    503: "The engine starts, hangs, is gone, or shuts down; `message` has the cause.",
}
BODY_ERRORS = (400, 401, 404, 413, 415, 500)
"""What a route with a body may answer."""
ENGINE_ERRORS = (*BODY_ERRORS, 429, 503)
"""What a route with a body may answer that uses the engine."""


class ErrorDetail(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """Every answer but a good one."""

    error: ErrorDetail


class Description:
    """Collects the types of an application's routes."""

    def __init__(self) -> None:
        self._bodies: list[type[BaseModel]] = []
        self._answers: list[Any] = [ErrorBody]

    def route(
        self,
        summary: str,
        *bodies: type[BaseModel],
        answer: Any = dict[str, Any],
        media_type: str = "application/json",
        stream: str = "",
        errors: Sequence[int] = (401, 500),
    ) -> dict[str, Any]:
        """Arguments of FastAPI's decorators; several bodies are alternatives; stream: what the events hold.

        The routes read their bodies themselves, so nothing is inferred.
        """
        self._bodies += bodies
        content: dict[str, Any] = {media_type: {"schema": self._answer(answer)}}
        if stream:
            # No type: readers of the document differ on whether it is the stream that has one, or an event.
            content["text/event-stream"] = {"schema": {"description": stream}}
        extra: dict[str, Any] = {"responses": {"200": {"description": "Done.", "content": content}}}
        for status in sorted({403, *errors}):
            error = {"schema": {"$ref": _REF.format(name="ErrorBody")}}
            extra["responses"][str(status)] = {
                "description": _PROBLEMS[status],
                "content": {"application/json": error},
            }
        if bodies:
            refs = [{"$ref": _REF.format(name=body.__name__)} for body in bodies]
            schema: dict[str, Any] = dict(refs[0]) if len(refs) == 1 else {"anyOf": refs}
            extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        return {"summary": summary, "openapi_extra": extra, "response_model": None}

    def _answer(self, answer: Any) -> dict[str, Any]:
        if typing.get_origin(answer) is list:
            return {"type": "array", "items": self._answer(typing.get_args(answer)[0])}
        if not (isinstance(answer, type) and issubclass(answer, msgspec.Struct)):
            return {"type": "string"} if answer is str else {"type": "object"}
        self._answers.append(answer)
        return {"$ref": _REF.format(name=answer.__name__)}

    def schemas(self) -> dict[str, Any]:
        """Every type by its name."""
        _, answers = msgspec.json.schema_components(dict.fromkeys(self._answers), ref_template=_REF)
        pairs = [(body, "validation") for body in dict.fromkeys(self._bodies)]
        _, bodies = models_json_schema(pairs, ref_template=_REF.replace("name", "model"))  # type: ignore[arg-type]
        return {**answers, **bodies.get("$defs", {})}


class DescribedApp(FastAPI):
    """FastAPI with a document that says the whole truth."""

    def __init__(self, description: Description, open_paths: frozenset[str], **settings: Any) -> None:
        super().__init__(**settings)
        self._described = description
        self._open_paths = open_paths

    def openapi(self) -> dict[str, Any]:
        """Made once."""
        if not self.openapi_schema:
            document = super().openapi()
            components = document.setdefault("components", {})
            # FastAPI describes the shape of its own errors, which no route of ours sends.
            components["schemas"] = self._described.schemas()
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    self._finish(path, operation)
            self.openapi_schema = document
        return self.openapi_schema

    def _finish(self, path: str, operation: dict[str, Any]) -> None:
        responses: dict[str, Mapping[str, Any]] = operation["responses"]
        responses.pop("422", None)
        if path in self._open_paths:
            responses.pop("401", None)
            operation["security"] = []
        else:
            operation["security"] = [{"bearer": []}, {"header": []}]
