"""Token ids of tokenizers in GGUF files against SentencePiece, transformers and the models' own word splitting."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from inferplane.text.tokenizer import Tokenizer
from inferplane_api.errors import InferplaneError
from inferplane_quantization.gguf_format import GGUFFormat
from inferplane_quantization.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from inferplane_api.checkpoint import CheckpointCard

GOLDEN = Path(__file__).parent / "golden"
STRINGS: list[str] = json.loads((GOLDEN / "strings.json").read_text(encoding="utf-8"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TRAINING = [
    "The quick brown fox doesn't jump over 12345 lazy dogs; we'll see, I'M sure. " * 3,
    "Größe naïve café Привет мир 你好世界 日本語 한국어 هلا 👍 👨‍👩‍👧 e\u0301 ½²",
    "def f(x):\n    if x > 0:\n\t\treturn x ** 2  # 3.14\r\n\n\nHelloWorld camelCase ABCdef",
] * 4


def write(path: Path, change: Callable[[gguf.GGUFWriter], None]) -> Path:
    """A file with a tokenizer and next to nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(8)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    change(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path: Path, cache: Path) -> Tokenizer:
    return Tokenizer.from_card(GGUFFormat().card(path, cache))


# ------------------------------------------------------------------------------------------------------ byte-level BPE


@pytest.fixture(scope="module")
def byte_level() -> tuple[dict[str, int], list[str]]:
    """Vocabulary and merges that know no words, so that the splitting decides."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+|\S+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Also pairs across every kind of boundary.
    pairs = [a + b for t in TRAINING[:3] for a, b in itertools.pairwise(t)]
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    library.train_from_iterator(TRAINING + pairs, trainer)
    model = json.loads(library.to_str())["model"]
    return model["vocab"], [" ".join(merge) for merge in model["merges"]]


def byte_level_file(path: Path, vocabulary: tuple[dict[str, int], list[str]], pre: str | None) -> Path:
    ids, merges = vocabulary
    tokens = [*sorted(ids, key=ids.__getitem__), "<|eos|>", "<think>", "<|im start|>"]

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([NORMAL] * len(ids) + [CONTROL, USER_DEFINED, CONTROL])
        writer.add_token_merges(merges)
        writer.add_eos_token_id(len(ids))

    return write(path, change)


FALCON = [
    pre_tokenizers.Punctuation("contiguous"),
    pre_tokenizers.ByteLevel(False),
    pre_tokenizers.Digits(individual_digits=False),
    pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
]
SMOLLM = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
DEEPSEEK = [
    pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
    pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
    pre_tokenizers.Split(
        Regex(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        ),
        "isolated",
    ),
    pre_tokenizers.ByteLevel(False, use_regex=False),
]


@pytest.mark.parametrize(
    ("pre", "steps"),
    [
        ("gpt-2", [pre_tokenizers.ByteLevel(False)]),
        ("smollm", SMOLLM),
        ("starcoder", SMOLLM),
        ("default", FALCON),
        (None, FALCON),
        ("deepseek-v3", DEEPSEEK),
    ],
)
def test_words_are_cut_as_the_models_own_files_do(
    pre: str | None, steps: list[Any], byte_level: tuple[dict[str, int], list[str]], tmp_path: Path
) -> None:
    ids, merges = byte_level
    truth = Library(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    truth.pre_tokenizer = pre_tokenizers.Sequence(steps)
    truth.decoder = decoders.ByteLevel()
    ours = load(byte_level_file(tmp_path / "m.gguf", byte_level, pre), tmp_path)
    # What "default" takes from Falcon's splitting is said in ASCII.
    for text in [s for s in [*STRINGS, *TRAINING] if steps is not FALCON or ("`" not in s and s.isascii())]:
        assert ours.encode(text) == truth.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-4o", "qwen35"])
def test_words_are_cut_as_transformers_does(
    pre: str, byte_level: tuple[dict[str, int], list[str]], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    path = byte_level_file(tmp_path / "m.gguf", byte_level, pre)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = load(path, tmp_path)
    if PRE_TOKENIZERS[pre].ignore_merges:
        # llama.cpp and the models' own files take whole words of the vocabulary, transformers' reading does not.
        file = tmp_path / "tokenizer.json"
        stored = json.loads(file.read_text(encoding="utf-8"))
        assert stored["model"]["ignore_merges"]
        stored["model"]["ignore_merges"] = False
        file.write_text(json.dumps(stored), encoding="utf-8")
        ours = Tokenizer.from_file(file)
    # transformers adds a token of this name to a vocabulary that has none.
    for text in [s for s in [*STRINGS, *TRAINING] if "<|endoftext|>" not in s]:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text


def test_every_splitting_loads_and_loses_nothing(byte_level: tuple[dict[str, int], list[str]], tmp_path: Path) -> None:
    for pre in {splitting.expressions: name for name, splitting in PRE_TOKENIZERS.items()}.values():
        ours = load(byte_level_file(tmp_path / "m.gguf", byte_level, pre), tmp_path)
        for text in STRINGS:
            assert ours.decode(ours.encode(text, add_special_tokens=False)) == text, pre


def test_whole_words_win_over_merges(tmp_path: Path) -> None:
    ids = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    ids |= {"ab": 256, "abc": 257, "bc": 258}
    for pre, expected in (("llama-bpe", [257]), ("qwen2", [ids["a"], 258])):
        ours = load(byte_level_file(tmp_path / "m.gguf", (ids, ["b c"]), pre), tmp_path)
        assert ours.encode("abc", add_special_tokens=False) == expected


def test_special_and_user_defined_tokens(byte_level: tuple[dict[str, int], list[str]], tmp_path: Path) -> None:
    count = len(byte_level[0])
    ours = load(byte_level_file(tmp_path / "m.gguf", byte_level, "qwen2"), tmp_path)
    ids = ours.encode("a<think>b<|im start|><|eos|>")
    assert [i for i in ids if i >= count] == [count + 1, count + 2, count]
    assert ours.decode(ids) == "a<think>b"
    assert ours.decode(ids, skip_special_tokens=False) == "a<think>b<|im start|><|eos|>"
    assert (ours.eos_token_id, ours.bos_token_id) == (count, None)
    assert ours.vocab_size == count + 3


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (False, True), (True, True), (False, False), (None, None)])
@pytest.mark.parametrize(("pre", "default"), [("llama-bpe", True), ("qwen2", False)])
def test_bos_and_eos(pre: str, default: bool, bos: bool | None, eos: bool | None, tmp_path: Path) -> None:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_merges([])
        writer.add_bos_token_id(256)
        writer.add_eos_token_id(257)
        if bos is not None and eos is not None:
            writer.add_add_bos_token(bos)
            writer.add_add_eos_token(eos)

    path = write(tmp_path / "m.gguf", change)
    card = GGUFFormat().card(path, tmp_path)
    adds_bos = default if bos is None else bos
    ours = Tokenizer.from_card(card)
    middle = tokens.index("a")
    assert ours.encode("a") == [256] * adds_bos + [middle] + [257] * bool(eos)
    assert ours.encode("a", add_special_tokens=False) == [middle]
    assert ours.encode("") == [256] * adds_bos + [257] * bool(eos)
    assert card.tokenizer_config == {
        "add_bos_token": adds_bos, "add_eos_token": bool(eos), "bos_token": "<s>", "eos_token": "</s>",
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- SentencePiece


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no_prefix"])
def sentencepiece_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trained SentencePiece model as Llama's and Gemma's are set up."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TRAINING * 5), model_prefix=str(folder / "m"), vocab_size=620, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, normalization_rule_name="identity", split_digits=True,
        remove_extra_whitespaces=False, add_dummy_prefix=request.param, allow_whitespace_only_pieces=True,
        user_defined_symbols=["\n\n", "<b>", "\n"], minloglevel=2,
    )  # fmt: skip
    return request.param, sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))


def sentencepiece_file(path: Path, prefix: bool, model: Any) -> Path:
    ids = range(model.get_piece_size())

    def kind(index: int) -> int:
        if model.is_unknown(index):
            return UNKNOWN
        if model.is_control(index):
            return CONTROL
        if model.is_byte(index):
            return BYTE
        return USER_DEFINED if model.id_to_piece(index) in ("\n\n", "<b>", "\n") else NORMAL

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([model.id_to_piece(i) for i in ids])
        writer.add_token_scores([model.get_score(i) for i in ids])
        writer.add_token_types([kind(i) for i in ids])
        writer.add_bos_token_id(model.bos_id())
        writer.add_eos_token_id(model.eos_id())
        writer.add_unk_token_id(model.unk_id())
        writer.add_add_space_prefix(prefix)

    return write(path, change)


def test_ids_and_texts_equal_sentencepiece(sentencepiece_model: Any, tmp_path: Path) -> None:
    prefix, model = sentencepiece_model
    ours = load(sentencepiece_file(tmp_path / "m.gguf", prefix, model), tmp_path)
    for text in [*STRINGS, *TRAINING]:
        if prefix and ("\n" in text or "<b>" in text):
            continue  # llama.cpp starts anew after a user-defined token, SentencePiece does not
        if any(token in text for token in ("<s>", "</s>", "<unk>")):
            continue  # SentencePiece finds no control tokens in a text
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == model.encode(text), text
        assert ours.decode(ids) == (text.replace("\u2581", " ") if text else ""), text
    assert ours.encode("a") == [model.bos_id(), *model.encode("a")], "llama.cpp adds BOS unless told otherwise"
    assert ours.encode("a<s>b</s>", add_special_tokens=False) == [
        *model.encode("a"), model.bos_id(), *model.encode("b"), model.eos_id(),
    ]  # fmt: skip


def test_characters_without_bytes_are_unknown(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab"])
        writer.add_token_scores([0, 0, 0, -3, -4, -5, -1, -2])
        writer.add_token_types([UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL])

    # Nor does the file name its special tokens: old ones leave them out where they are the usual ones.
    card = GGUFFormat().card(write(tmp_path / "m.gguf", change), tmp_path)
    assert (card.config["bos_token_id"], card.config["eos_token_id"]) == (1, 2)
    ours = Tokenizer.from_card(card)
    assert (ours.bos_token_id, ours.eos_token_id, ours.unk_token_id) == (1, 2, 0)
    assert ours.encode("ab") == [1, 7]
    assert ours.encode("abxxa") == [1, 7, 0, 4]


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda w: (w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("klingon")), "'klingon'"),
        (lambda w: w.add_tokenizer_model("bert"), "'bert'"),
        (lambda w: w.add_tokenizer_model("llama"), "score"),
    ],
)
def test_what_is_not_known_is_named(change: Callable[[gguf.GGUFWriter], None], problem: str, tmp_path: Path) -> None:
    def with_tokens(writer: gguf.GGUFWriter) -> None:
        change(writer)
        writer.add_token_list(["a", "b"])

    with pytest.raises(InferplaneError, match=problem) as caught:
        GGUFFormat().card(write(tmp_path / "m.gguf", with_tokens), tmp_path)
    assert caught.value.code == "gguf.tokenizer"
    assert not list(tmp_path.glob("*.json*"))


def test_a_token_twice_is_refused(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "a"])

    with pytest.raises(InferplaneError, match="twice"):
        GGUFFormat().card(write(tmp_path / "m.gguf", change), tmp_path)


def test_a_file_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    card = GGUFFormat().card(write(tmp_path / "m.gguf", lambda writer: None), tmp_path)
    assert card.tokenizer_json is None
    assert card.tokenizer_config == {}


def test_the_chat_template_is_taken(byte_level: tuple[dict[str, int], list[str]], tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_chat_template("{{ messages }}")

    assert GGUFFormat().card(write(tmp_path / "m.gguf", change), tmp_path).chat_template == "{{ messages }}"


# ---------------------------------------------------------------------------------------------------------- real models


@pytest.fixture(scope="module")
def smollm2_card(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> CheckpointCard:
    return GGUFFormat().card(smollm2_path, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def gemma3_card(gemma3_path: Path, tmp_path_factory: pytest.TempPathFactory) -> CheckpointCard:
    return GGUFFormat().card(gemma3_path, tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def smollm2(smollm2_card: CheckpointCard) -> Tokenizer:
    return Tokenizer.from_card(smollm2_card)


@pytest.fixture(scope="module")
def gemma3(gemma3_card: CheckpointCard) -> Tokenizer:
    return Tokenizer.from_card(gemma3_card)


def check_golden(tokenizer: Tokenizer, name: str) -> None:
    """The ids are transformers' own, written down, but for strings where it differs from llama.cpp."""
    golden: dict[str, list[int]] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert len(golden) >= 50
    for text, ids in golden.items():
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.models
def test_smollm2_ids(smollm2: Tokenizer) -> None:
    check_golden(smollm2, "smollm2")
    # Digits are cut off before words are, as in the model's own tokenizer.json; transformers' reading of the file does
    # not do so.
    assert smollm2.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert smollm2.encode("  123") == [256, 33, 34, 35]
    assert smollm2.encode("abc   456") == [25276, 333, 36, 37, 38]
    assert (smollm2.bos_token_id, smollm2.eos_token_id, smollm2.vocab_size) == (1, 2, 49152)


@pytest.mark.models
def test_smollm2_ids_equal_the_published_splitting(smollm2: Tokenizer, smollm2_path: Path) -> None:
    """The same vocabulary under the pre-tokenizer of the model's tokenizer.json: single digits, then GPT-2's words."""
    from inferplane_quantization.gguf_file import read_header

    values = read_header(smollm2_path).metadata
    tokens, merges = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    truth = Library(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    truth.pre_tokenizer = pre_tokenizers.Sequence(SMOLLM)
    truth.add_special_tokens([tokens[i] for i, kind in enumerate(values["tokenizer.ggml.token_type"]) if kind == 3])
    for text in STRINGS:
        assert smollm2.encode(text) == truth.encode(text).ids, text


@pytest.mark.models
def test_gemma3_ids(gemma3: Tokenizer) -> None:
    check_golden(gemma3, "gemma3")
    assert gemma3.encode("hi") == [2, 2202]
    # User-defined runs of spaces are taken longest first, as SentencePiece and llama.cpp do.
    assert gemma3.encode(" " * 40, add_special_tokens=False) == [167, 145]
    assert (gemma3.bos_token_id, gemma3.eos_token_id, gemma3.vocab_size) == (2, 1, 262144)


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_golden_ids_are_those_of_transformers(name: str, request: pytest.FixtureRequest) -> None:
    from transformers import AutoTokenizer

    path = request.getfixturevalue(f"{name}_path")
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert {text: theirs.encode(text, add_special_tokens=False) for text in golden} == golden


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_weights_equal_transformers(name: str, request: pytest.FixtureRequest) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    path = request.getfixturevalue(f"{name}_path")
    state = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).state_dict()
    checkpoint = GGUFFormat().open(path)
    assert set(checkpoint.names()) == set(state) - {"lm_head.weight"}
    assert all(torch.equal(checkpoint.tensor(tensor), state[tensor]) for tensor in checkpoint.names())


@pytest.mark.models
def test_smollm2_config(smollm2_card: CheckpointCard) -> None:
    card = smollm2_card
    expected = {
        "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "rope_theta": 100000.0, "max_position_embeddings": 8192, "dtype": "bfloat16", "rms_norm_eps": 1e-5,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True,
    }  # fmt: skip
    assert expected.items() <= card.config.items()
    assert "<|im_start|>" in (card.chat_template or "")
    assert card.generation_config["eos_token_id"][0] == 2


@pytest.mark.models
def test_gemma3_config(gemma3_card: CheckpointCard) -> None:
    card = gemma3_card
    expected = {
        "model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 18, "head_dim": 256,
        "sliding_window": 512,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3, "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip
    assert expected.items() <= card.config.items()
    assert card.chat_template is None
