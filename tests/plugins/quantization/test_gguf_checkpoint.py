"""Tensors and configs of written files against what went in and against transformers' own reading of the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from inferplane_api.checkpoint import Checkpoint, WeightFormat
from inferplane_api.errors import InferplaneError
from inferplane_quantization.gguf_config import llama3_scaling
from inferplane_quantization.gguf_format import GGUFFormat

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL_TYPES = ["llama", "qwen2", "qwen3", "gemma3_text"]


@pytest.fixture(scope="module", params=MODEL_TYPES)
def made(request: pytest.FixtureRequest, make_gguf: Callable[..., tuple[Path, Any]]) -> tuple[str, Path, Any]:
    path, model = make_gguf(request.param)
    return request.param, path, model


def test_the_format_is_the_contract_s(made: tuple[str, Path, Any]) -> None:
    assert isinstance(GGUFFormat(), WeightFormat)
    assert isinstance(GGUFFormat().open(made[1]), Checkpoint)


def test_tensors_are_what_went_in(made: tuple[str, Path, Any]) -> None:
    _, path, model = made
    state = model.state_dict()
    checkpoint = GGUFFormat().open(path)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(checkpoint.names()) == set(state) - tied
    for name in checkpoint.names():
        torch.testing.assert_close(checkpoint.tensor(name), state[name], rtol=0, atol=2e-7, msg=name)
        if state[name].ndim == 2:
            weight = checkpoint.weight(name)
            assert weight.scheme.name == "dense"
            assert torch.equal(weight.data, state[name])
            assert torch.equal(weight.dequantize(torch.bfloat16), state[name].to(torch.bfloat16))


def test_tensors_and_config_equal_transformers(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, path, model = made
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    checkpoint = GGUFFormat().open(path)
    state = theirs.state_dict()
    if model_type == "llama":
        # transformers 5.24 reads no biases of this architecture; what went in is compared above.
        state = {name: tensor for name, tensor in state.items() if "bias" not in name}
    for name, tensor in state.items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            torch.testing.assert_close(checkpoint.tensor(name), tensor, rtol=0, atol=0, msg=name)
    card = GGUFFormat().card(path, tmp_path)
    ours = AutoConfig.for_model(**card.config)
    for field in (
        "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
        "eos_token_id", "bos_token_id", "rope_parameters", "sliding_window", "layer_types", "attention_bias",
    ):  # fmt: skip
        if not hasattr(model.config, field):
            continue
        expected = getattr(model.config, field)
        if field in ("eos_token_id", "bos_token_id"):
            expected = getattr(theirs.config, field)
        assert getattr(ours, field) == expected, field


def test_logits_of_the_read_weights_equal_those_that_went_in(made: tuple[str, Path, Any], tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    _, path, model = made
    rebuilt = AutoModelForCausalLM.from_config(AutoConfig.for_model(**GGUFFormat().card(path, tmp_path).config))
    checkpoint = GGUFFormat().open(path)
    rebuilt = rebuilt.float()
    missing = rebuilt.load_state_dict({n: checkpoint.tensor(n) for n in checkpoint.names()}, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    assert not missing.unexpected_keys
    ids = torch.arange(48)[None] % 90
    with torch.no_grad():
        torch.testing.assert_close(rebuilt(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0, GGMLQuantizationType.F16])
def test_packed_rows_are_unpermuted(kind: GGMLQuantizationType, make_gguf: Callable[..., tuple[Path, Any]]) -> None:
    """Quantizing a row is a matter of the row alone, so permuting packed rows is permuting the matrix."""
    path, model = make_gguf("llama", kind)
    checkpoint = GGUFFormat().open(path)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        plain = model.state_dict()[f"model.layers.1.{name}.weight"].numpy()
        expected = gguf.quants.dequantize(gguf.quants.quantize(plain, kind), kind)
        weight = checkpoint.weight(f"model.layers.1.{name}.weight")
        np.testing.assert_array_equal(weight.dequantize(torch.float32).numpy(), expected)
        if kind != GGMLQuantizationType.F16:
            np.testing.assert_array_equal(weight.data.numpy(), gguf.quants.quantize(plain, kind))


def test_plain_tensors_are_views_of_the_file(
    make_gguf: Callable[..., tuple[Path, Any]], resident_bytes: Callable[[Path], int]
) -> None:
    path = make_gguf("qwen3")[0]
    checkpoint = GGUFFormat().open(path)
    first, again = (checkpoint.tensor("model.layers.0.mlp.up_proj.weight") for _ in range(2))
    assert first.data_ptr() == again.data_ptr()
    expected = first.clone()
    assert resident_bytes(path) > 0
    checkpoint.close()
    assert resident_bytes(path) == 0, "what is packed elsewhere by now is not held twice"
    assert torch.equal(first, expected), "what was handed out stays valid"


def test_unknown_names_raise_key_error(make_gguf: Callable[..., tuple[Path, Any]]) -> None:
    checkpoint = GGUFFormat().open(make_gguf("qwen3")[0])
    for read in (checkpoint.tensor, checkpoint.weight):
        with pytest.raises(KeyError):
            read("model.layers.99.mlp.up_proj.weight")
    with pytest.raises(InferplaneError, match="not a matrix"):
        checkpoint.weight("model.norm.weight")


def test_a_split_file_reads_as_the_whole(make_gguf: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = make_gguf("llama")
    reader = gguf.GGUFReader(path)
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    half = len(reader.tensors) // 2
    for index, (part, tensors) in enumerate(zip(parts, (reader.tensors[:half], reader.tensors[half:]), strict=True)):
        writer = gguf.GGUFWriter(part, "llama")
        if index == 0:
            for name, field in reader.fields.items():
                if not name.startswith(("GGUF.", "general.architecture")):
                    kind, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
                    writer.add_key_value(name, field.contents(), kind, sub_type=sub)
        for tensor in tensors:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    whole, split = GGUFFormat().open(path), GGUFFormat().open(parts[1])
    assert sorted(split.names()) == sorted(whole.names())
    assert all(torch.equal(split.tensor(n), whole.tensor(n)) for n in whole.names())
    card = GGUFFormat().card(parts[0], tmp_path / "cache")
    assert card.config == GGUFFormat().card(path, tmp_path / "other").config
    assert card.files == tuple(map(str, parts))


def test_a_file_without_its_last_tensors_is_named(make_gguf: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = make_gguf("qwen3")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:-4096])
    checkpoint = GGUFFormat().open(cut)
    *_, last = checkpoint.names()
    with pytest.raises(InferplaneError, match="ends before"):
        checkpoint.tensor(last)


def write(path: Path, architecture: str, change: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    change(writer)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_architectures_that_are_not_known_are_refused_with_those_that_are(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "mamba", lambda writer: None)
    for read in (lambda: GGUFFormat().card(path, tmp_path), lambda: GGUFFormat().open(path)):
        with pytest.raises(InferplaneError, match=r"'mamba'.*\n.*gemma3, llama, qwen2, qwen3"):
            read()
    experts = write(tmp_path / "e.gguf", "llama", lambda writer: writer.add_expert_count(8))
    with pytest.raises(InferplaneError, match="mixture of experts"):
        GGUFFormat().card(experts, tmp_path)
    empty = write(tmp_path / "n.gguf", "llama", lambda writer: writer.add_head_count(4))
    with pytest.raises(InferplaneError, match=r"llama\.embedding_length"):
        GGUFFormat().card(empty, tmp_path)


def test_tensors_that_are_not_known_are_refused(make_gguf: Callable[..., tuple[Path, Any]]) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q.scale", np.ones(1, np.float32))

    with pytest.raises(InferplaneError, match=r"attn_q\.scale"):
        GGUFFormat().open(make_gguf("qwen3", change=add)[0])


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")]
)
def test_dtype_is_that_of_plain_weights(
    kind: str, dtype: str, make_gguf: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    assert GGUFFormat().card(make_gguf("qwen3", GGMLQuantizationType[kind])[0], tmp_path).config["dtype"] == dtype


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("factor", "high", "original", "theta"), [(8.0, 4.0, 8192, 5e5), (32.0, 4.0, 8192, 5e5), (16.0, 8.0, 4096, 1e5)]
)
def test_llama3_factors_give_their_parameters(
    head_dim: int, factor: float, high: float, original: int, theta: float, make_gguf: Callable[..., tuple[Path, Any]],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The truth: transformers' frequencies, divided."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": high,
        "original_max_position_embeddings": original, "rope_theta": theta,
    }  # fmt: skip
    config = LlamaConfig(head_dim=head_dim, rope_parameters=parameters, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = theta ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    factors = (plain / scaled.double()).float()
    found = llama3_scaling(factors.tolist(), head_dim, theta)
    assert found is not None
    again, _ = ROPE_INIT_FUNCTIONS["llama3"](
        LlamaConfig(head_dim=head_dim, rope_parameters={**found, "rope_theta": theta}, max_position_embeddings=131072),
        "cpu",
    )
    torch.testing.assert_close(again, scaled, rtol=1e-4, atol=0)
    if factor != 16.0:
        assert (found["factor"], found["high_freq_factor"]) == (factor, high)
        assert found["original_max_position_embeddings"] == original

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())

    path, _ = make_gguf("llama", change=add, head_dim=head_dim, rope_theta=theta)
    assert GGUFFormat().card(path, tmp_path).config["rope_scaling"] == found
    assert "rope_freqs.weight" not in GGUFFormat().open(path).names()


def test_other_rope_factors_are_refused() -> None:
    assert llama3_scaling([1.0] * 32, 64, 1e4) is None
    with pytest.raises(InferplaneError, match="rope factors"):
        llama3_scaling([1.0, 3.0] * 16, 64, 1e4)


def test_rope_scaling_metadata(make_gguf: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    def scaling(kind: gguf.RopeScalingType) -> Any:
        def add(writer: gguf.GGUFWriter) -> None:
            writer.add_rope_scaling_type(kind)
            writer.add_rope_scaling_factor(4.0)
            writer.add_rope_scaling_orig_ctx_len(32768)

        return GGUFFormat().card(make_gguf("qwen2", change=add)[0], tmp_path).config.get("rope_scaling")

    assert scaling(gguf.RopeScalingType.NONE) is None
    assert scaling(gguf.RopeScalingType.LINEAR) == {"rope_type": "linear", "factor": 4.0}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert scaling(gguf.RopeScalingType.YARN) == yarn
    with pytest.raises(InferplaneError, match="longrope"):
        scaling(gguf.RopeScalingType.LONGROPE)


def test_sampling_values_and_end_tokens(make_gguf: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.7)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_eot_token_id(95)

    config = GGUFFormat().card(make_gguf("qwen3", change=add)[0], tmp_path).generation_config
    assert config == {"temperature": 0.7, "top_k": 20, "eos_token_id": [94, 95], "bos_token_id": 95}


def test_a_card_imports_no_torch(make_gguf: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    path, _ = make_gguf("qwen3")
    code = (
        "import sys; from pathlib import Path; from inferplane_quantization.gguf_format import GGUFFormat\n"
        f"GGUFFormat().card(Path({str(path)!r}), Path({str(tmp_path)!r}))\n"
        "sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_descriptor_is_found_and_light() -> None:
    from importlib.metadata import entry_points

    (entry,) = [e for e in entry_points(group="inferplane.quantization") if e.name == "gguf.file"]
    code = (
        "import sys; import inferplane_quantization.descriptor as d; assert d.GGUF.id == 'gguf.file'\n"
        "sys.exit(bool({'torch', 'numpy', 'gguf'} & set(sys.modules)))"
    )
    assert entry.load().file_suffixes == (".gguf",)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
