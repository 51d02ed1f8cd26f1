"""The safetensors format against folders that transformers wrote and tensors that safetensors reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from inferplane.checkpoint.safetensors_format import SafetensorsFormat
from inferplane.errors import InferplaneError
from inferplane_api.checkpoint import Checkpoint, WeightFormat

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def saved(tiny_llama_dir: Path) -> dict[str, torch.Tensor]:
    """What the library reads from the single file that transformers wrote."""
    return load_file(tiny_llama_dir / "model.safetensors")


@pytest.fixture
def sharded(tmp_path: Path, tiny_llama_dir: Path) -> Path:
    """The same model as transformers shards it."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(tiny_llama_dir).save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    return folder


def failure(folder: Path, action: Callable[[Path], Any]) -> InferplaneError:
    with pytest.raises(InferplaneError) as caught:
        action(folder)
    assert caught.value.remedy
    return caught.value


def open_all(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = SafetensorsFormat().open(folder)
    return {name: checkpoint.tensor(name) for name in checkpoint.names()}


def card(folder: Path) -> Any:
    return SafetensorsFormat().card(folder, folder / "derived")


def assert_same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert mine[name].dtype == tensor.dtype
        assert torch.equal(mine[name], tensor)


def test_fits_the_contract(tiny_llama_dir: Path) -> None:
    assert isinstance(SafetensorsFormat(), WeightFormat)
    assert isinstance(SafetensorsFormat().open(tiny_llama_dir), Checkpoint)


def test_single_file_gives_what_the_library_reads(tiny_llama_dir: Path, saved: dict[str, torch.Tensor]) -> None:
    assert_same(open_all(tiny_llama_dir), saved)
    assert_same(open_all(tiny_llama_dir / "model.safetensors"), saved)


def test_shards_give_the_same_tensors(sharded: Path, saved: dict[str, torch.Tensor]) -> None:
    assert_same(open_all(sharded), saved)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.uint8])
def test_types_and_ranks(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "matrix": torch.arange(12).reshape(3, 4).to(dtype),
        "vector": torch.arange(5).to(dtype),
        "scalar": torch.tensor(3).to(dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
        "cube": torch.arange(24).reshape(2, 3, 4).to(dtype),
    }
    save_file(tensors, tmp_path / "model.safetensors")

    assert_same(open_all(tmp_path), tensors)


def mapped_files(address: int) -> list[str]:
    """The file that is mapped at this address, by the kernel's word."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            found.append(line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) > 5 else "")
    return found


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks the kernel what is mapped")
def test_weights_are_views_of_the_mapped_file(sharded: Path) -> None:
    checkpoint = SafetensorsFormat().open(sharded)
    index = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.layers.1.mlp.up_proj.weight"

    weight = checkpoint.weight(name)

    assert mapped_files(weight.data.data_ptr()) == [str((sharded / index[name]).resolve())]
    assert weight.data.data_ptr() == checkpoint.tensor(name).data_ptr()
    other = next(file for file in set(index.values()) if file != index[name])
    assert other not in Path("/proc/self/maps").read_text()


def test_writing_to_a_view_leaves_the_file_alone(tmp_path: Path) -> None:
    save_file({"a": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()

    SafetensorsFormat().open(tmp_path).tensor("a").zero_()

    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_weight_is_dense(tiny_llama_dir: Path, saved: dict[str, torch.Tensor]) -> None:
    checkpoint = SafetensorsFormat().open(tiny_llama_dir)
    name = "model.layers.0.mlp.up_proj.weight"

    weight = checkpoint.weight(name)

    assert weight.scheme.name == "dense"
    assert weight.shape == tuple(saved[name].shape)
    assert torch.equal(weight.data, saved[name])
    assert torch.equal(weight.dequantize(torch.bfloat16), saved[name].to(torch.bfloat16))
    with pytest.raises(ValueError, match="two dimensions"):
        checkpoint.weight("model.norm.weight")


def test_unknown_names_and_closed(tiny_llama_dir: Path) -> None:
    checkpoint = SafetensorsFormat().open(tiny_llama_dir)
    kept = checkpoint.tensor("model.norm.weight")

    with pytest.raises(KeyError):
        checkpoint.tensor("no.such.weight")
    checkpoint.close()
    with pytest.raises(KeyError):
        checkpoint.tensor("model.norm.weight")
    assert torch.isfinite(kept).all()


def test_a_closed_file_is_out_of_memory_and_its_tensors_are_what_they_were(
    tmp_path: Path, resident_bytes: Callable[[Path], int]
) -> None:
    expected = torch.arange(2**20, dtype=torch.int32)
    file = tmp_path / "a name with spaces.safetensors"
    save_file({"large": expected, "small": expected[:3].clone()}, file)
    (tmp_path / "config.json").write_text("{}")
    checkpoint = SafetensorsFormat().open(file)
    kept = {name: checkpoint.tensor(name) for name in ("large", "small")}
    assert torch.equal(kept["large"], expected)
    assert resident_bytes(file) >= expected.nbytes
    checkpoint.close()
    assert resident_bytes(file) == 0
    assert torch.equal(kept["large"], expected)
    assert torch.equal(kept["small"], expected[:3])


def test_truncated_file_is_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    content = (tiny_llama_dir / "model.safetensors").read_bytes()
    for length in (0, 7, 100, len(content) - 1):
        (tmp_path / "model.safetensors").write_bytes(content[:length])
        error = failure(tmp_path, open_all)
        assert error.code == "checkpoint.bad_file"
        assert str(tmp_path / "model.safetensors") in error.message


def test_truncated_shard_is_named_when_it_is_opened(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])

    error = failure(sharded, open_all)

    assert error.code == "checkpoint.bad_file"
    assert str(shard) in error.message


def test_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()

    error = failure(sharded, SafetensorsFormat().open)

    assert error.code == "checkpoint.missing_file"
    assert str(shard) in error.message


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../x.safetensors"}}'],
)
def test_bad_index_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(index)

    for action in (SafetensorsFormat().open, card):
        error = failure(tmp_path, action)
        assert error.code == "checkpoint.bad_file"
        assert "model.safetensors.index.json" in error.message


def test_index_that_names_a_tensor_the_shard_has_not(sharded: Path) -> None:
    file = sharded / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"]["model.extra.weight"] = index["weight_map"]["model.norm.weight"]
    file.write_text(json.dumps(index))

    error = failure(sharded, open_all)

    assert error.code == "checkpoint.bad_file"
    assert "model.extra.weight" in error.message


def test_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")

    error = failure(tmp_path, SafetensorsFormat().open)

    assert error.code == "checkpoint.pickle_only"
    assert "pytorch_model.bin" in error.message


def test_empty_folder(tmp_path: Path) -> None:
    assert failure(tmp_path, SafetensorsFormat().open).code == "checkpoint.no_weights"
    assert failure(tmp_path, card).code == "checkpoint.no_config"


def test_card_has_what_transformers_wrote(tiny_llama_dir: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    found = card(tiny_llama_dir)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama_dir)

    config = AutoConfig.from_pretrained(tiny_llama_dir)
    assert found.config["hidden_size"] == config.hidden_size
    assert found.config["model_type"] == config.model_type
    assert found.generation_config == json.loads((tiny_llama_dir / "generation_config.json").read_text())
    assert found.tokenizer_json == str(tiny_llama_dir / "tokenizer.json")
    assert found.tokenizer_config["eos_token"] == tokenizer.eos_token
    assert found.chat_template == tokenizer.chat_template
    assert found.files == (str(tiny_llama_dir / "model.safetensors"),)


def test_card_of_shards_lists_them_all(sharded: Path) -> None:
    assert card(sharded).files == tuple(str(file) for file in sorted(sharded.glob("model-*.safetensors")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an empty config and a tokenizer file."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def settings(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_template_file_comes_before_the_settings(folder: Path) -> None:
    settings(folder, chat_template="from settings")
    assert card(folder).chat_template == "from settings"
    (folder / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert card(folder).chat_template == "from json"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert card(folder).chat_template == "from jinja"


def test_named_templates(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    settings(folder, chat_template=named)
    assert card(folder).chat_template == "plain"

    settings(folder, chat_template=named[:1])
    assert card(folder).chat_template is None
    assert "tool_use" in caplog.text


def test_special_tokens_are_strings_and_the_settings_win(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<s>", "lstrip": False}, "pad_token": "<pad>"})
    )
    settings(folder, eos_token={"content": "</s>", "__type": "AddedToken"}, pad_token=None, add_bos_token=True)

    found = card(folder).tokenizer_config

    assert found["bos_token"] == "<s>"
    assert found["eos_token"] == "</s>"
    assert found["pad_token"] is None
    assert found["add_bos_token"] is True


def test_a_length_without_limit_fits_into_a_message(folder: Path) -> None:
    settings(folder, model_max_length=int(1e30), padding_side="left")

    found = card(folder).tokenizer_config

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == found
    assert found["model_max_length"] == pytest.approx(1e30)


def test_slow_tokenizer_alone_is_announced(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"")

    assert card(folder).tokenizer_json is None
    assert "tokenizer.model" in caplog.text


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_broken_metadata_is_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)

    error = failure(folder, card)

    assert error.code == "checkpoint.bad_file"
    assert str(folder / name) in error.message


def test_folder_with_a_gguf_file_says_how_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")

    assert str(tmp_path / "m.gguf") in failure(tmp_path, card).remedy


def test_copies_of_the_weights_are_left_out(tiny_llama_dir: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_llama_dir / "model.safetensors", tmp_path / "weights-1.safetensors")
    shutil.copy(tiny_llama_dir / "model.safetensors", tmp_path / "consolidated.00.safetensors")
    (tmp_path / "config.json").write_text("{}")

    assert card(tmp_path).files == (str(tmp_path / "weights-1.safetensors"),)
    shutil.copy(tiny_llama_dir / "model.safetensors", tmp_path / "weights-2.safetensors")
    assert "holds too" in failure(tmp_path, open_all).message


def sentence_folder(tmp_path: Path, tiny_llama_dir: Path, path: str) -> Path:
    folder = tmp_path / "sentence"
    shutil.copytree(tiny_llama_dir, folder)
    modules = [{"path": "", "type": "x.Transformer"}, {"path": path, "type": "x.Pooling"}, {"type": "x.Normalize"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "sentence_xlnet_config.json").write_text('{"max_seq_length": 5}')
    return folder


def test_the_card_holds_what_sentence_transformers_keeps(tmp_path: Path, tiny_llama_dir: Path) -> None:
    folder = sentence_folder(tmp_path, tiny_llama_dir, "1_Pooling")
    found = SafetensorsFormat().card(folder, tmp_path / "cache").sentence_transformers
    assert found == {
        "modules.json": json.loads((folder / "modules.json").read_text()),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "sentence_xlnet_config.json": {"max_seq_length": 5},
    }
    assert SafetensorsFormat().card(tiny_llama_dir, tmp_path / "cache").sentence_transformers == {}


@pytest.mark.parametrize("path", ["..", "../x", "/etc", "a/b", "a\\b", 5])
def test_a_module_outside_the_folder_is_refused(tmp_path: Path, tiny_llama_dir: Path, path: Any) -> None:
    folder = sentence_folder(tmp_path, tiny_llama_dir, path)
    error = failure(folder, lambda folder: SafetensorsFormat().card(folder, tmp_path / "cache"))
    assert error.code == "checkpoint.bad_file"
    assert "modules.json" in str(error)


@pytest.mark.parametrize("text", ["{}", "[1]", "nonsense", "[[]]"])
def test_modules_that_are_no_list_of_objects_are_refused(tmp_path: Path, tiny_llama_dir: Path, text: str) -> None:
    folder = sentence_folder(tmp_path, tiny_llama_dir, "1_Pooling")
    (folder / "modules.json").write_text(text)
    error = failure(folder, lambda folder: SafetensorsFormat().card(folder, tmp_path / "cache"))
    assert "modules.json" in str(error)
