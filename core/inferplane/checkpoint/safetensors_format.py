"""The Hugging Face folder: config, tokenizer and safetensors weights. Imports torch only to open the weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inferplane.checkpoint.mapped_pages import drop_pages
from inferplane.errors import InferplaneError
from inferplane.log import get_logger
from inferplane_api.checkpoint import CheckpointCard
from inferplane_api.quant import DENSE, Weight

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

log = get_logger(__name__)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MODULES = "modules.json"
_SLOW_TOKENIZERS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


class SafetensorsFormat:
    """See `inferplane_api.checkpoint.WeightFormat`. The path is the folder, or a safetensors file in it."""

    def __init__(self) -> None:
        pass

    def card(self, path: Path, cache: Path) -> CheckpointCard:
        """See `WeightFormat.card`; needs no derived files. Codes "checkpoint.no_config", "checkpoint.bad_file"."""
        folder = path if path.is_dir() else path.parent
        if not (folder / "config.json").is_file():
            raise InferplaneError(
                f"{folder} has no config.json",
                code="checkpoint.no_config",
                remedy=_remedy_without_config(folder),
            )
        tokenizer_json, tokenizer_config, chat_template = read_tokenizer(folder)
        return CheckpointCard(
            config=_read_object(folder / "config.json"),
            generation_config=_read_optional(folder / "generation_config.json"),
            tokenizer_json=tokenizer_json,
            tokenizer_config=tokenizer_config,
            chat_template=chat_template,
            sentence_transformers=read_sentence_transformers(folder),
            files=tuple(str(file) for file in (weight_files(folder) if path.is_dir() else [path])),
        )

    def open(self, path: Path) -> SafetensorsCheckpoint:
        """See `WeightFormat.open`. Codes "checkpoint.no_weights", "checkpoint.missing_file", "checkpoint.bad_file"."""
        if not path.is_dir():
            return SafetensorsCheckpoint(path.parent, _names_in_files([path]))
        index = path / INDEX
        if index.is_file():
            return SafetensorsCheckpoint(path, _read_weight_map(index))
        files = weight_files(path)
        if not files:
            raise no_weights(path)
        return SafetensorsCheckpoint(path, _names_in_files(files))


class SafetensorsCheckpoint:
    """See `inferplane_api.checkpoint.Checkpoint`. A file is mapped when the first of its tensors is asked for.

    Tensors are views of a private mapping: nothing is read before it is touched, and nothing is copied.
    """

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        """`files`: tensor name to the name of the file in the folder."""
        self._folder = folder
        self._files = files
        self._opened: dict[str, Any] = {}
        for file in sorted(set(files.values())):
            check_exists(folder / file)

    def names(self) -> Iterable[str]:
        """See `Checkpoint.names`."""
        return self._files.keys()

    def tensor(self, name: str) -> torch.Tensor:
        """See `Checkpoint.tensor`. InferplaneError "checkpoint.bad_file" when the index names a file without it."""
        file = self._files[name]
        handle = self._opened.get(file)
        if handle is None:
            handle = self._opened[file] = _open_file(self._folder / file)
        from safetensors import SafetensorError

        try:
            tensor: torch.Tensor = handle.get_tensor(name)
        except SafetensorError as error:
            raise _bad(self._folder / file, f"it has no tensor {name}, which the index places there") from error
        return tensor

    def weight(self, name: str) -> Weight:
        """See `Checkpoint.weight`; always of the scheme "dense". ValueError for a tensor that is not 2-D."""
        data = self.tensor(name)
        if data.dim() != 2:
            raise ValueError(f"{name} has the shape {tuple(data.shape)}, a weight has two dimensions")
        return Weight(scheme=DENSE, shape=(data.shape[0], data.shape[1]), data=data, dequantize=data.to)

    def close(self) -> None:
        """See `Checkpoint.close`. Views that are still alive keep their mapping, without its pages in memory."""
        for file in self._opened:
            drop_pages(self._folder / file)
        self._opened.clear()
        self._files = {}


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder: those of the index, else the one file, else whatever safetensors lie there.

    The list may name files that do not exist and may be empty; raises InferplaneError for a damaged index.
    """
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_read_weight_map(folder / INDEX).values()))]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    return sorted(file for file in folder.glob("*.safetensors") if not file.name.startswith("consolidated"))


def read_tokenizer(folder: Path) -> tuple[str | None, dict[str, Any], str | None]:
    """(path of tokenizer.json, tokenizer_config with plain token strings, chat template) of a folder."""
    settings = _read_optional(folder / "special_tokens_map.json") | _read_optional(folder / "tokenizer_config.json")
    settings = {name: _plain_token(value) if name.endswith("_token") else value for name, value in settings.items()}
    path = folder / "tokenizer.json"
    if not path.is_file():
        slow = [name for name in _SLOW_TOKENIZERS if (folder / name).is_file()]
        if slow:
            log.warning(
                "%s has %s but no tokenizer.json, so it is served without a tokenizer; name one with --tokenizer",
                folder,
                ", ".join(slow),
            )
        return None, settings, _chat_template(folder, settings)
    return str(path), settings, _chat_template(folder, settings)


def read_sentence_transformers(folder: Path) -> dict[str, Any]:
    """What sentence-transformers keeps in a folder of its own, by path; see `CheckpointCard.sentence_transformers`."""
    if not (folder / MODULES).is_file():
        return {}
    modules = _read_json(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise _bad(folder / MODULES, "it is not a list of modules")
    found: dict[str, Any] = {MODULES: modules}
    for module in modules:
        path = module.get("path")
        if path in (None, ""):
            continue
        if not isinstance(path, str) or path in {".", ".."} or "/" in path or "\\" in path:
            raise _bad(folder / MODULES, f"it places a module in {path!r}, which is not the name of a folder beside it")
        if (folder / path / "config.json").is_file():
            found[f"{path}/config.json"] = _read_object(folder / path / "config.json")
    for file in sorted(folder.glob("sentence_*_config.json")):
        found[file.name] = _read_object(file)
    return found


def check_exists(file: Path) -> None:
    """Raise InferplaneError "checkpoint.missing_file" when a weight file is not there."""
    if not file.is_file():
        raise InferplaneError(
            f"the weight file {file} is missing",
            code="checkpoint.missing_file",
            remedy="fetch or copy the model again; --load-format dummy runs it on random weights",
        )


def no_weights(path: Path) -> InferplaneError:
    """The error for a folder without weights that are read, naming those that are not."""
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
    if pickles:
        return InferplaneError(
            f"{path} has only pickle weights ({', '.join(pickles[:3])}); reading a pickle can run any code",
            code="checkpoint.pickle_only",
            remedy="convert it to safetensors in a place that you trust, or fetch a revision that has them",
        )
    return InferplaneError(
        f"{path} has no safetensors files",
        code="checkpoint.no_weights",
        remedy="check that the model was fetched completely; --load-format dummy runs it on random weights",
    )


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    template = _read_optional(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
        if template is None and named:
            log.warning(
                "%s has chat templates named %s, none of them the default; choose one with --chat-template",
                folder,
                ", ".join(sorted(str(name) for name in named)),
            )
    return template if isinstance(template, str) else None


def _plain_token(value: Any) -> Any:
    """A token written as an object with its stripping rules is the string in it; the rules are in tokenizer.json."""
    return value["content"] if isinstance(value, dict) and "content" in value else value


def _read_weight_map(index: Path) -> dict[str, str]:
    weight_map = _read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad(index, "it has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or "/" in file or "\\" in file or file in {"", ".", ".."}:
            raise _bad(index, f"it places {name} in {file!r}, which is not the name of a file beside it")
    return weight_map


def _names_in_files(files: list[Path]) -> dict[str, str]:
    names: dict[str, str] = {}
    for file in files:
        check_exists(file)
        handle = _open_file(file)
        for name in handle.keys():  # noqa: SIM118  (not a dict)
            if name in names:
                raise _bad(file, f"it holds {name}, which {names[name]} holds too")
            names[name] = file.name
    return names


def _open_file(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        # The framework is fixed: views of the mapping, on the host.
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise _bad(file, f"it is damaged or incomplete: {error}") from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(file, str(error)) from error


def _read_json(file: Path) -> Any:
    try:
        return json.loads(_read_text(file), parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise _bad(file, f"it is not JSON: {error}") from error


def _parse_int(text: str) -> int | float:
    """A card travels to the engine's process, and messages hold 64 bits: 10**30 is how some say "no limit"."""
    value = int(text)
    return value if -(2**63) <= value < 2**64 else float(text)


def _read_object(file: Path) -> dict[str, Any]:
    value = _read_json(file)
    if not isinstance(value, dict):
        raise _bad(file, "it is not a JSON object")
    return value


def _read_optional(file: Path) -> dict[str, Any]:
    return _read_object(file) if file.is_file() else {}


def _remedy_without_config(folder: Path) -> str:
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if ggufs:
        return f"name the file: {folder / ggufs[0]}" if len(ggufs) == 1 else f"name one of: {', '.join(ggufs)}"
    return "a model is a folder with config.json and *.safetensors, or a file of an installed format"


def _bad(file: Path, problem: str) -> InferplaneError:
    return InferplaneError(
        f"{file}: {problem}",
        code="checkpoint.bad_file",
        remedy="fetch or copy the model again",
    )
