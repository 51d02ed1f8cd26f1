"""Which format reads a checkpoint, and its card; a plugin's format works in a child process. Opens no weights."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from inferplane.checkpoint.card_cache import CardCache
from inferplane.checkpoint.safetensors_format import check_exists, no_weights, read_tokenizer
from inferplane.errors import InferplaneError, InvalidValue
from inferplane.sources.cache import cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from inferplane.config.schema import ModelConfig
    from inferplane_api.checkpoint import CheckpointCard, WeightFormat
    from inferplane_api.spec import WeightFormatSpec

OWN_DISTRIBUTION = "inferplane"
PLAIN_FORMAT = "hf.safetensors"
"""Id of the format of a folder whose config names no quantization."""
AUTO = "auto"
DUMMY = "dummy"


class FoundFormat(Protocol):
    """A format that discovery found, and the distribution it came from."""

    @property
    def spec(self) -> WeightFormatSpec:
        """What the format declares."""

    @property
    def distribution(self) -> str:
        """Name of the distribution."""

    @property
    def version(self) -> str:
        """Its version."""


def read_card(
    path: Path,
    formats: Sequence[FoundFormat],
    config: ModelConfig,
    *,
    tokenizer_path: Path | None = None,
    weights: bool = True,
) -> tuple[CheckpointCard, str]:
    """The checkpoint's card, with `hf_overrides` and the separate tokenizer applied, and the id of its format.

    `tokenizer_path` is where `config.tokenizer` lies; by default it is found or fetched. With weights=False, or dummy
    ones, the weight files need not be there. Raises InvalidValue for a
    format that is not installed or does not read this checkpoint, InferplaneError "checkpoint.…" naming the file that
    is wrong, or "checkpoint.format_failed" naming the distribution whose format crashed or hung.
    """
    found = choose_format(path, formats, config)
    card = _make_card(path, found)
    if weights and config.load_format != DUMMY:
        if not card.files:
            raise no_weights(path)
        for file in card.files:
            check_exists(_as_path(file))
    if config.hf_overrides:
        card = msgspec.structs.replace(card, config=_merged(card.config, config.hf_overrides))
    tokenizer_path = tokenizer_path or _separate_tokenizer(config)
    if tokenizer_path is not None:
        card = _with_tokenizer(card, tokenizer_path, formats, config)
    return card, found.spec.id


def choose_format(path: Path, formats: Sequence[FoundFormat], config: ModelConfig) -> FoundFormat:
    """The format that reads the checkpoint: the one asked for, else by the file's suffix or the config's quant_method.

    A format that was asked for and does not read this checkpoint is an error, never ignored.
    """
    method = None if path.is_file() else quant_method(_quick_config(path) | config.hf_overrides)
    asked = (("quantization", config.quantization, ()), ("load_format", config.load_format, (AUTO, DUMMY)))
    for field, name, others in asked:
        if name is None or name in others:
            continue
        chosen = _by_name(field, name, others, formats)
        if problem := _mismatch(path, method, chosen.spec):
            raise InvalidValue(field, name, problem, remedy="leave it out, or name the format of this checkpoint")
        return chosen
    if path.is_file():
        return _by_suffix(path, formats)
    if method is not None:
        return _by_method(path, method, formats)
    return _by_id(PLAIN_FORMAT, formats)


def quant_method(config: dict[str, Any]) -> str | None:
    """The name of the quantization that a Hugging Face config declares; None for plain weights."""
    text = config.get("text_config")
    settings = config.get("quantization_config") or config.get("compression_config")
    if settings is None and isinstance(text, dict):
        settings = text.get("quantization_config")
    if not isinstance(settings, dict):
        return None
    return str(settings.get("quant_method") or "unnamed")


def _make_card(path: Path, found: FoundFormat) -> CheckpointCard:
    if found.distribution == OWN_DISTRIBUTION:
        format_class: Callable[[], WeightFormat] = _load(found.spec.load)
        return format_class().card(path, cache_root() / "cards")
    return CardCache(cache_root() / "cards").get(path, found)


def _load(load: str) -> Any:
    from importlib import import_module

    module, _, attribute = load.partition(":")
    return getattr(import_module(module), attribute)


def _quick_config(folder: Path) -> dict[str, Any]:
    """The config as far as it can be read; the format that is chosen says what is wrong with it."""
    from inferplane.sources.cache import read_json

    value = read_json(folder / "config.json")
    return value if isinstance(value, dict) else {}


def _names(spec: WeightFormatSpec) -> set[str]:
    return {spec.id, spec.name, *spec.aliases, *spec.quant_methods}


def _by_name(field: str, name: str, others: Sequence[str], formats: Sequence[FoundFormat]) -> FoundFormat:
    """`others`: values of the field that name no format."""
    matching = [found for found in formats if name.lower() in {known.lower() for known in _names(found.spec)}]
    if len(matching) == 1:
        return matching[0]
    known = sorted({found.spec.name for found in formats})
    if matching:
        owners = ", ".join(f"{found.spec.id} ({found.distribution})" for found in matching)
        raise InvalidValue(field, name, f"several formats have this name: {owners}", remedy="name one by its id")
    near = difflib.get_close_matches(name, [*known, *others], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    also = f"; also {', '.join(others)}" if others else ""
    remedy = f"{hint}installed are: {', '.join(known)}{also}"
    raise InvalidValue(field, name, "no such format is installed", remedy=remedy)


def _mismatch(path: Path, method: str | None, spec: WeightFormatSpec) -> str | None:
    if path.is_file():
        reads = _has_suffix(path, spec) or (spec.id == PLAIN_FORMAT and path.suffix == ".safetensors")
        return None if reads else f"{path.name} is not a file of this format"
    if spec.file_suffixes and not spec.quant_methods and spec.id != PLAIN_FORMAT:
        return f"{path} is a folder, and this format is one file ({', '.join(spec.file_suffixes)})"
    if method is not None and method not in spec.quant_methods:
        return f"the checkpoint is quantized with {method}, which this format does not read"
    if method is None and spec.id != PLAIN_FORMAT:
        return "the checkpoint is not quantized"
    return None


def _has_suffix(path: Path, spec: WeightFormatSpec) -> bool:
    return path.name.lower().endswith(tuple(suffix.lower() for suffix in spec.file_suffixes))


def _by_suffix(path: Path, formats: Sequence[FoundFormat]) -> FoundFormat:
    matching = [found for found in formats if _has_suffix(path, found.spec)]
    if not matching and path.suffix == ".safetensors":
        return _by_id(PLAIN_FORMAT, formats)
    if not matching:
        suffixes = sorted(suffix for found in formats for suffix in found.spec.file_suffixes)
        raise InferplaneError(
            f"no installed format reads the file {path.name}",
            code="checkpoint.unknown_format",
            remedy=f"installed formats read folders with config.json and safetensors{_listed(suffixes)}"
            + (" (the format of GGUF files: pip install inferplane-quantization)" if path.suffix == ".gguf" else ""),
        )
    return _one(path, matching)


def _by_method(path: Path, method: str, formats: Sequence[FoundFormat]) -> FoundFormat:
    matching = [found for found in formats if method in found.spec.quant_methods]
    if not matching:
        methods = sorted(name for found in formats for name in found.spec.quant_methods)
        raise InferplaneError(
            f"{path} is quantized with {method!r}, which no installed format reads",
            code="checkpoint.unknown_quantization",
            remedy=f"install the package of that format, or use a checkpoint without it; installed are: "
            f"{', '.join(sorted(found.spec.name for found in formats))}"
            + (f", reading the methods {', '.join(methods)}" if methods else ", reading no quantized folders"),
        )
    return _one(path, matching)


def _by_id(format_id: str, formats: Sequence[FoundFormat]) -> FoundFormat:
    for found in formats:
        if found.spec.id == format_id:
            return found
    raise InferplaneError(
        f"the format {format_id} is not among the plugins that may be used",
        code="checkpoint.unknown_format",
        remedy="see --plugins and --disable-plugins",
    )


def _one(path: Path, matching: list[FoundFormat]) -> FoundFormat:
    if len(matching) > 1:
        owners = ", ".join(f"{found.spec.id} ({found.distribution})" for found in matching)
        raise InferplaneError(
            f"several installed formats read {path}: {owners}",
            code="checkpoint.ambiguous_format",
            remedy="choose one with --load-format",
        )
    return matching[0]


def _listed(suffixes: list[str]) -> str:
    return f", and files {', '.join(suffixes)}" if suffixes else ""


def _as_path(file: str) -> Path:
    from pathlib import Path

    return Path(file)


def _merged(config: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides win; an object in both is merged field by field."""
    merged = dict(config)
    for name, value in overrides.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _separate_tokenizer(config: ModelConfig) -> Path | None:
    from inferplane.sources.resolve import resolve_tokenizer

    return resolve_tokenizer(config)


def _with_tokenizer(
    card: CheckpointCard, path: Path, formats: Sequence[FoundFormat], config: ModelConfig
) -> CheckpointCard:
    if path.is_file() and path.name != "tokenizer.json":
        other = _make_card(path, _by_suffix(path, formats))
        tokenizer_json, settings, template = other.tokenizer_json, other.tokenizer_config, other.chat_template
    else:
        tokenizer_json, settings, template = read_tokenizer(path if path.is_dir() else path.parent)
    if tokenizer_json is None:
        raise InvalidValue(
            "tokenizer",
            config.tokenizer or str(path),
            "there is no tokenizer.json in it",
            remedy="name a folder with tokenizer.json, that file, a GGUF file, or a hub id",
        )
    return msgspec.structs.replace(
        card,
        tokenizer_json=tokenizer_json,
        tokenizer_config=settings,
        chat_template=template if template is not None else card.chat_template,
    )
