"""Text to token ids and back, over the `tokenizers` library; knows no request and no model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Tokenizer as _Backend

from inferplane.errors import InferplaneError
from inferplane.text.token_decoding import TokenDecoding, read_decoding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane_api.checkpoint import CheckpointCard

_SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


class TokenPiece(NamedTuple):
    """A token of a byte-level vocabulary."""

    data: bytes
    text: str | None
    """None where the bytes are not whole characters."""


class Tokenizer:
    """One checkpoint's tokenizer. Safe to use from several threads."""

    def __init__(self, backend: _Backend, config: dict[str, Any] | None = None) -> None:
        self._backend = backend
        self.config = config or {}
        """As tokenizer_config.json has it."""
        self.added_tokens: dict[int, str] = {}
        """Id to text of the tokens that are not the model's own pieces."""
        special = set()
        for index, token in backend.get_added_tokens_decoder().items():
            self.added_tokens[index] = token.content
            if token.special:
                special.add(index)
        self.special_ids: frozenset[int] = frozenset(special)
        """Tokens that `skip_special_tokens` leaves out."""
        self.vocab_size: int = max(backend.get_vocab_size(), max(self.added_tokens, default=-1) + 1)
        """Ids are below it."""
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.unk_token_id = self._named_id("unk_token")
        self.pad_token_id = self._named_id("pad_token")
        decoder = backend.decoder
        self.decoding: TokenDecoding | None = read_decoding(json.loads(decoder.__getstate__()) if decoder else None)
        """How single tokens become bytes; None where the library's decoder works on whole texts only."""
        self._pieces: dict[int, TokenPiece] = {}
        """Those that were asked for; at most the vocabulary."""
        self.whole_texts: dict[int, str] = {}
        """Of those, the texts of tokens that are whole characters behind whole characters: filled by who decodes."""

    @classmethod
    def from_card(cls, card: CheckpointCard) -> Tokenizer:
        """Load the tokenizer that the card points to.

        Raises InferplaneError where there is none, or none that can be read, saying what to do.
        """
        if card.tokenizer_json is None:
            raise _missing(card)
        return cls.from_file(card.tokenizer_json, card.tokenizer_config)

    @classmethod
    def from_file(cls, path: str | Path, config: dict[str, Any] | None = None) -> Tokenizer:
        """Load a tokenizer.json. Raises InferplaneError naming the file."""
        try:
            backend = _Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise InferplaneError(
                f"cannot load the tokenizer {path}: {error}",
                code="tokenizer.unreadable",
                remedy="check that the file is whole and that `tokenizers` is recent enough for it",
            ) from error
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, config)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; special tokens that stand in the text are recognised. `add_special_tokens`: BOS and the like."""
        # Of the library's calls, only those for batches let other threads run: a long text must not stop the server.
        # This one leaves out the offsets, which cost twice as much as the ids.
        (encoding,) = self._backend.encode_batch_fast([_plain(text)], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """The same for several texts, in parallel."""
        encodings = self._backend.encode_batch([_plain(t) for t in texts], add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_truncated(self, texts: Sequence[str], most: int, add_special_tokens: bool = True) -> list[list[int]]:
        """The same with at most `most` ids for each text: what comes first is kept, and so are the special tokens."""
        num_special = self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        encodings = self._backend.encode_batch_fast([_plain(text) for text in texts], add_special_tokens=False)
        for encoding in encodings:
            encoding.truncate(max(0, most - num_special))
        if add_special_tokens:
            encodings = [self._backend.post_process(encoding, None, True) for encoding in encodings]
        return [encoding.ids[:most] for encoding in encodings]

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of token ids; ids outside the vocabulary give nothing.

        Equal to what a Detokenizer streams. Bytes that are not UTF-8 become U+FFFD. `spaces_between_special_tokens`
        matters only to decoders that put spaces between tokens.
        """
        from inferplane.text.detokenizer import TextStream

        stream = TextStream(self, skip_special_tokens, spaces_between_special_tokens)
        parts = [stream.push(index) for index in ids]
        parts.append(stream.finish())
        return "".join(parts)

    def decode_whole(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The library's own decoding of the whole sequence."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, index: int) -> str | None:
        """The vocabulary's spelling, or None outside the vocabulary."""
        token: str | None = self._backend.id_to_token(index) if index >= 0 else None
        return token

    def piece(self, index: int) -> TokenPiece:
        """What a token is in a text, where `decoding` is byte-level; nothing outside the vocabulary."""
        found = self._pieces.get(index)
        if found is None:
            found = self._read_piece(index)
            if 0 <= index < self.vocab_size:
                self._pieces[index] = found
                if found.text is not None:
                    self.whole_texts[index] = found.text
        return found

    def _read_piece(self, index: int) -> TokenPiece:
        token = self.id_to_token(index)
        assert self.decoding is not None
        data = b"" if token is None else self.decoding.token_bytes(token)
        try:
            return TokenPiece(data, data.decode())
        except UnicodeDecodeError:
            return TokenPiece(data, None)

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's spellings; "" outside the vocabulary."""
        return [self.id_to_token(index) or "" for index in ids]

    def token_to_id(self, token: str) -> int | None:
        """The id of a vocabulary entry, or None."""
        index: int | None = self._backend.token_to_id(token)
        return index

    def is_special(self, index: int) -> bool:
        """True for tokens that `skip_special_tokens` leaves out."""
        return index in self.special_ids

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token stands for: those of part of a character too. Empty outside the vocabulary.

        A word-initial mark gives its space.
        """
        token = self.id_to_token(index)
        if token is None:
            return b""
        if self.decoding is not None:
            return self.decoding.token_bytes(token)
        return self.added_tokens.get(index, token).encode("utf-8", errors="replace")

    def _named_id(self, role: str) -> int | None:
        token = self.config.get(role)
        if isinstance(token, dict):  # older files spell a token as an AddedToken
            token = token.get("content")
        return self.token_to_id(token) if isinstance(token, str) else None


def _plain(text: str) -> str:
    """Lone surrogates, which JSON can carry and UTF-8 cannot, become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _missing(card: CheckpointCard) -> InferplaneError:
    folders = {Path(file).parent for file in card.files}
    for folder in folders:
        for name in _SENTENCEPIECE_FILES:
            if (folder / name).is_file():
                return InferplaneError(
                    f"{folder} has a SentencePiece tokenizer ({name}) and no tokenizer.json, which is what is read",
                    code="tokenizer.sentencepiece",
                    remedy=(
                        'convert it once, where transformers is installed: python -c "from transformers import '
                        f"AutoTokenizer; AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\""
                    ),
                )
    return InferplaneError(
        "the checkpoint has no tokenizer.json",
        code="tokenizer.none",
        remedy="give one with --tokenizer, or send token ids",
    )
