"""Whether a model generates or pools, and how it pools: from flags, the checkpoint's own files and the model's kind.

Knows no request and computes no vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.plan.types import Decision
from inferplane_api.pooling import PoolingParams, PoolingType

if TYPE_CHECKING:
    from inferplane.plan.settings import Settings
    from inferplane_api.checkpoint import CheckpointCard
    from inferplane_api.model import ModelSpec

RUNNER, CONVERT, POOLER = "model.runner", "model.convert", "model.pooler_config"
MODULES = "modules.json"

_TYPES = get_args(PoolingType)
_MODES: Mapping[str, PoolingType] = {"cls_token": "CLS", "mean_tokens": "MEAN", "lasttoken": "LAST"}
"""What sentence-transformers calls `pooling_mode_…: true`."""
_NEW_MODES: Mapping[str, PoolingType] = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST"}
"""What its newer files call `pooling_mode`."""


class PoolingChoice(NamedTuple):
    """The task of an engine, and the model as that task needs it."""

    model: ModelSpec
    pooler: PoolingParams | None
    """None: the model generates."""
    matryoshka: tuple[int, ...] | None
    """Sizes that `dimensions` may ask for; empty: any; None: it may not be asked for."""
    lower_case: bool
    """Texts are lower-cased before they are tokenized."""
    decisions: tuple[Decision, ...]


class _Pooler(NamedTuple):
    """How a vector is made, as one source says it; None: it says nothing."""

    pooling_type: PoolingType | None = None
    normalize: bool | None = None
    dimensions: int | None = None


def is_encoder(model: ModelSpec) -> bool:
    """True for a model that reads its prompt in both directions and generates nothing."""
    return all(layer.kind == "encoder" for layer in model.layers)


def choose_pooling(settings: Settings, model: ModelSpec, card: CheckpointCard) -> PoolingChoice:
    """Encoders, and checkpoints of sentence-transformers, pool; others generate unless --runner pooling asks.

    --pooler-config wins over the checkpoint's modules.json, which wins over the model's kind: CLS for encoders, LAST
    for decoders, normalized. Raises InvalidValue naming the flag that contradicts the model or another flag,
    InferplaneError for a checkpoint whose vectors would not be its own.
    """
    pools, runner = _runner(settings, model, card)
    convert = _convert(settings, model, pools=pools)
    if not pools:
        if settings.value(POOLER):
            problem = f"{model.model_type} generates here"
            raise InvalidValue("pooler_config", settings.value(POOLER), problem, remedy="--runner pooling")
        return PoolingChoice(model, None, None, False, (runner, convert))
    if not is_encoder(model) and card.config.get("is_causal") is False:
        raise InferplaneError(
            f"the config of this {model.model_type} has is_causal=false: its attention looks in both directions, which "
            "is not supported for decoders",
            code="model.bidirectional",
            remedy="another checkpoint, or --hf-overrides '{\"is_causal\": true}', which changes its vectors",
        )
    pooler, decision = _pooler(settings, model, card)
    transformer = _transformer_settings(card)
    return PoolingChoice(
        _fitted(model, transformer),
        pooler,
        _matryoshka(card, model, pooler),
        bool(transformer.get("do_lower_case", False)),
        (runner, convert, decision),
    )


def _runner(settings: Settings, model: ModelSpec, card: CheckpointCard) -> tuple[bool, Decision]:
    asked = settings.value(RUNNER)
    encoder, listed = is_encoder(model), MODULES in card.sentence_transformers
    if asked == "generate" and encoder:
        problem = f"{model.model_type} is an encoder: it generates no text"
        raise InvalidValue("runner", asked, problem, remedy="--runner pooling, or leave it out")
    if asked != "auto":
        pools, source, reason = asked == "pooling", settings.source(RUNNER), "--runner"
    elif encoder:
        pools, source, reason = True, "checkpoint", f"{model.model_type} is an encoder"
    elif listed:
        pools, source, reason = True, "checkpoint", f"its {MODULES} says how it pools"
    else:
        pools, source, reason = False, "automatic", f"{model.model_type} is a decoder"
    chosen = "pooling" if pools else "generate"
    return pools, Decision(subject=f"config {RUNNER}", chosen=chosen, source=source, reason=reason)


def _convert(settings: Settings, model: ModelSpec, *, pools: bool) -> Decision:
    asked, encoder = settings.value(CONVERT), is_encoder(model)
    if asked == "embed" and not pools:
        raise InvalidValue("convert", asked, f"{model.model_type} generates here", remedy="--runner pooling")
    if asked == "none" and pools and not encoder:
        problem = f"{model.model_type} is no embedding model by itself"
        raise InvalidValue("convert", asked, problem, remedy="--convert embed, or leave it out")
    chosen = "embed" if pools and not encoder else "none"
    source = "automatic" if asked == "auto" else settings.source(CONVERT)
    reason = "hidden states instead of logits" if chosen == "embed" else "the model is used as it is"
    return Decision(subject=f"config {CONVERT}", chosen=chosen, source=source, reason=reason)


def _pooler(settings: Settings, model: ModelSpec, card: CheckpointCard) -> tuple[PoolingParams, Decision]:
    said = _said(settings.value(POOLER))
    listed = _listed(card, pooling_said=said.pooling_type is not None)
    kind = _Pooler("CLS" if is_encoder(model) else "LAST", normalize=True)
    order = [(said, settings.source(POOLER)), (listed, "checkpoint"), (kind, "automatic")]
    pooling_type, source = next((p.pooling_type, name) for p, name in order if p.pooling_type is not None)
    normalize = next(p.normalize for p, _ in order if p.normalize is not None)
    if said.dimensions is not None and said.dimensions > model.hidden_size:
        problem = f"dimensions={said.dimensions} exceeds the model's {model.hidden_size}"
        raise InvalidValue("pooler_config", settings.value(POOLER), problem)
    pooler = PoolingParams(pooling_type=pooling_type, normalize=normalize, dimensions=said.dimensions)
    chosen = pooling_type + (", normalized" if normalize else ", not normalized")
    reason = {"checkpoint": f"its {MODULES}", "automatic": "what models of this kind use"}.get(
        source, "--pooler-config"
    )
    return pooler, Decision(subject="pooling", chosen=chosen, source=source, reason=reason)


def _said(config: dict[str, Any]) -> _Pooler:
    """--pooler-config."""

    def refuse(key: str, problem: str) -> InvalidValue:
        return InvalidValue("pooler_config", {key: config[key]}, problem)

    known = ("task", "pooling_type", "seq_pooling_type", "normalize", "use_activation", "dimensions")
    for key in config:
        if key not in known:
            raise refuse(key, f"is not known here; known are {', '.join(known)}")
    if config.get("task", "embed") != "embed":
        raise refuse("task", "only 'embed' is supported")
    kinds = [(key, config[key]) for key in ("pooling_type", "seq_pooling_type") if config.get(key) is not None]
    for key, value in kinds:
        if value not in _TYPES:
            raise refuse(key, f"must be one of {', '.join(_TYPES)}")
    switches = [(key, config[key]) for key in ("normalize", "use_activation") if config.get(key) is not None]
    for key, value in switches:
        if not isinstance(value, bool):
            raise refuse(key, "must be true or false")
    for named in (kinds, switches):
        if len({value for _, value in named}) > 1:
            raise refuse(named[0][0], f"contradicts {named[1][0]}")
    dimensions = config.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise refuse("dimensions", "must be a whole number of at least 1")
    return _Pooler(kinds[0][1] if kinds else None, switches[0][1] if switches else None, dimensions)


def _listed(card: CheckpointCard, *, pooling_said: bool) -> _Pooler:
    """What the checkpoint's modules.json says. With `pooling_said`, the user has named another way to pool."""
    modules = card.sentence_transformers.get(MODULES)
    if modules is None:
        return _Pooler()
    pooling_type: PoolingType | None = None
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            path = f"{module.get('path', '')}/config.json"
            pooling_type = None if pooling_said else _mode(path, card.sentence_transformers.get(path))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise InferplaneError(
                f"{MODULES} of the checkpoint has a module {kind!r}, which is not supported: vectors without it would "
                "not be the model's own",
                code="model.pooling_module",
                remedy="another checkpoint; supported modules are Transformer, Pooling and Normalize",
            )
    return _Pooler(pooling_type, normalize)


def _mode(path: str, config: Any) -> PoolingType | None:
    """The way of pooling in a Pooling module's config."""
    if not isinstance(config, dict):
        return None
    modes = [
        (name, _MODES.get(name.removeprefix("pooling_mode_")))
        for name, value in config.items()
        if name.startswith("pooling_mode_") and value is True
    ]
    newer = config.get("pooling_mode")
    modes += [
        (str(mode), _NEW_MODES.get(str(mode))) for mode in (newer if isinstance(newer, list) else [newer]) if mode
    ]
    if not modes:
        return None
    if len(modes) > 1 or modes[0][1] is None:
        raise InferplaneError(
            f"{path} of the checkpoint asks for {' and '.join(name for name, _ in modes)}, which is not supported",
            code="model.pooling_mode",
            remedy=f'--pooler-config \'{{"pooling_type": "MEAN"}}\' insists on one of {", ".join(_TYPES)}',
        )
    return modes[0][1]


def _transformer_settings(card: CheckpointCard) -> dict[str, Any]:
    """sentence_bert_config.json, under whatever name it has."""
    for path, value in card.sentence_transformers.items():
        if path.startswith("sentence_") and path.endswith("_config.json") and isinstance(value, dict):
            return value
    return {}


def _fitted(model: ModelSpec, transformer: dict[str, Any]) -> ModelSpec:
    """The longest prompt that the checkpoint was made for; and no output matrix, which nothing would use."""
    longest = transformer.get("max_seq_length")
    most = min(longest, model.max_position) if type(longest) is int and longest > 0 else model.max_position
    if is_encoder(model):
        return msgspec.structs.replace(model, max_position=most)
    parameters = model.num_parameters
    if not model.tie_word_embeddings:
        parameters = max(0, parameters - model.vocab_size * model.hidden_size)
    return msgspec.structs.replace(model, max_position=most, tie_word_embeddings=True, num_parameters=parameters)


def _matryoshka(card: CheckpointCard, model: ModelSpec, pooler: PoolingParams) -> tuple[int, ...] | None:
    """The config's `matryoshka_dimensions`, or any size with `is_matryoshka`."""
    sizes = card.config.get("matryoshka_dimensions")
    most = pooler.dimensions or model.hidden_size
    if isinstance(sizes, list) and sizes:
        if not all(type(size) is int and 0 < size <= model.hidden_size for size in sizes):
            raise InvalidValue("matryoshka_dimensions", sizes, f"must be sizes of at most {model.hidden_size}")
        return tuple(size for size in sizes if size <= most)
    return () if card.config.get("is_matryoshka") else None
