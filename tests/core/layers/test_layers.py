"""Linear layers, vocabulary ends, op binding and loading, each against plain torch or a stated rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferplane.layers.context import ModelContext
from inferplane.layers.embedding import Embedding, LMHead
from inferplane.layers.layer import Layer
from inferplane.layers.linear import Linear, LinearFactory
from inferplane.layers.loading import DummyCheckpoint, RenamedCheckpoint, load_parameters
from inferplane.layers.mlp import GatedMLP
from inferplane.layers.norm import RMSNorm
from inferplane.layers.ops import Ops, bind_ops
from inferplane.plan.types import Component, OpBinding
from inferplane_api.batch import StepBatch
from inferplane_api.errors import InferplaneError, InvalidValue
from inferplane_api.model import LayerSpec, ModelSpec
from inferplane_api.ops import SCHEMAS
from inferplane_api.quant import DENSE, LinearKernel, QuantScheme, Weight
from inferplane_api.reference import ops as reference

CPU = torch.device("cpu")
HIDDEN, INNER, VOCAB = 8, 12, 20
Q4 = QuantScheme(name="q4", bits=4)
Q6 = QuantScheme(name="q6", bits=6)


class Tensors:
    """A checkpoint of given tensors; the ones with a scheme come as bytes that only `dequantize` understands."""

    def __init__(self, tensors: dict[str, torch.Tensor], schemes: dict[str, QuantScheme] | None = None) -> None:
        self.tensors, self.schemes = tensors, schemes or {}

    def names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def weight(self, name: str) -> Weight:
        plain = self.tensors[name]
        scheme = self.schemes.get(name, DENSE)
        data = plain if scheme is DENSE else torch.zeros(plain.shape[0], 3, dtype=torch.uint8)
        return Weight(scheme, (plain.shape[0], plain.shape[1]), data, plain.to)

    def close(self) -> None:
        pass


class Reference:
    """Dequantizes and multiplies."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        return torch.cat([w.dequantize(self.dtype) for w in weights])

    def apply(self, x: torch.Tensor, packed: Any, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.nn.functional.linear(x, packed, bias)


class Recording(Reference):
    """A kernel that stays packed and notes what it was given."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.packed: list[list[str]] = []

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        self.packed.append([w.scheme.name for w in weights])
        return super().pack(weights)


def make_context(kernels: dict[str, LinearKernel] | None = None, told: list[str] | None = None) -> ModelContext:
    spec = ModelSpec(
        model_type="test",
        architecture="",
        num_layers=1,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        vocab_size=VOCAB,
        max_position=10,
        dtype="float32",
        layers=(LayerSpec(num_heads=1, num_kv_heads=1, head_size=8),),
    )
    factory = LinearFactory(kernels or {}, Reference(CPU, torch.float32), [].append if told is None else told.append)
    return ModelContext({}, spec, bind_ops((), lambda c: None), factory, [], torch.float32, CPU)


def test_stacked_weights_and_biases_are_one_product() -> None:
    torch.manual_seed(0)
    tensors = {f"{n}.weight": torch.randn(s, HIDDEN) for n, s in (("a", 4), ("b", 2), ("c", 3))}
    tensors |= {f"{n}.bias": torch.randn(s) for n, s in (("a", 4), ("b", 2), ("c", 3))}
    dense = Recording(CPU, torch.float32)
    layer = Linear(make_context({"dense": dense}), ("a", "b", "c"), HIDDEN, (4, 2, 3), bias=True)
    assert layer.shapes() == {name: tuple(t.shape) for name, t in tensors.items()}
    layer.read(Tensors(tensors))
    assert dense.packed == [["dense", "dense", "dense"]]
    x = torch.randn(5, HIDDEN)
    expected = [x @ tensors[f"{n}.weight"].T + tensors[f"{n}.bias"] for n in "abc"]
    torch.testing.assert_close(layer(x), torch.cat(expected, -1))


@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_different_schemes_are_packed_apart_and_joined_in_order(bias: bool) -> None:
    torch.manual_seed(0)
    sizes = {"a": 4, "b": 2, "c": 3, "d": 5}
    tensors = {f"{n}.weight": torch.randn(s, HIDDEN) for n, s in sizes.items()}
    if bias:
        tensors |= {f"{n}.bias": torch.randn(s) for n, s in sizes.items()}
    schemes = {"a.weight": Q4, "b.weight": Q4, "c.weight": Q6, "d.weight": Q4}
    q4, told = Recording(CPU, torch.float32), []
    layer = Linear(make_context({"q4": q4}, told), tuple(sizes), HIDDEN, tuple(sizes.values()), bias=bias)
    layer.read(Tensors(tensors, schemes))
    assert q4.packed == [["q4", "q4"], ["q4"]]
    x = torch.randn(2, 3, HIDDEN)
    expected = [x @ tensors[f"{n}.weight"].T + (tensors[f"{n}.bias"] if bias else 0) for n in sizes]
    torch.testing.assert_close(layer(x), torch.cat(expected, -1))
    assert len(told) == 1
    assert "q6" in told[0]


def test_a_scheme_that_runs_dequantized_is_announced_once_and_dense_never() -> None:
    told: list[str] = []
    context = make_context({"q4": Recording(CPU, torch.float32)}, told)
    for name, scheme in (("a", Q6), ("b", Q6), ("c", Q4), ("d", DENSE)):
        layer = Linear(context, (name,), HIDDEN, (2,))
        layer.read(Tensors({f"{name}.weight": torch.zeros(2, HIDDEN)}, {f"{name}.weight": scheme}))
    assert len(told) == 1


def test_a_plan_that_names_the_reference_for_a_scheme_is_announced_too() -> None:
    told: list[str] = []
    factory = LinearFactory({"q4": Reference(CPU, torch.float32)}, Reference(CPU, torch.float32), told.append)
    assert not factory.has_kernel(Q4)
    factory.kernel(Q4)
    assert len(told) == 1


def test_by_default_the_announcement_is_a_warning_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    logger = logging.getLogger("inferplane.layers.linear")
    seen: list[logging.LogRecord] = []
    monkeypatch.setattr(logger, "handle", seen.append)
    LinearFactory({}, Reference(CPU, torch.float32)).kernel(Q4)
    assert [(record.levelname, "q4" in record.getMessage()) for record in seen] == [("WARNING", True)]


def test_rms_norm_adds_the_residual_when_there_is_one() -> None:
    norm = RMSNorm(make_context(), "norm", HIDDEN, 1e-6, offset=1.0)
    weight, x, residual = torch.randn(HIDDEN), torch.randn(3, HIDDEN), torch.randn(3, HIDDEN)
    norm.read(Tensors({"norm.weight": weight}))
    expected = torch.nn.functional.rms_norm(x, (HIDDEN,), weight + 1, 1e-6)
    first, total = norm.add(x, None)
    torch.testing.assert_close(first, expected)
    assert total is x
    second, total = norm.add(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(second, norm(x + residual))


def step(ids: list[int], **rest: Any) -> StepBatch:
    return StepBatch(torch.tensor(ids), torch.arange(len(ids)), (), **rest)


def test_given_embeddings_replace_masked_tokens_unscaled() -> None:
    embedding = Embedding(make_context(), "embed", scale=3.0)
    table, given = torch.randn(VOCAB, HIDDEN), torch.randn(2, HIDDEN)
    embedding.read(Tensors({"embed.weight": table}))
    torch.testing.assert_close(embedding(step([4, 5])), 3 * table[[4, 5]])
    mixed = embedding(step([4, 5], input_embeds=given, embeds_mask=torch.tensor([False, True])))
    torch.testing.assert_close(mixed, torch.stack([3 * table[4], given[1]]))


def test_the_embedding_scale_is_rounded_to_the_dtype() -> None:
    """sqrt(3072) = 55.4256 is 55.5 in bfloat16, and Gemma was trained with that."""
    context = make_context()._replace(dtype=torch.bfloat16)
    embedding = Embedding(context, "embed", scale=3072**0.5)
    embedding.read(Tensors({"embed.weight": torch.ones(VOCAB, HIDDEN)}))
    assert float(embedding(step([0]))[0, 0]) == 55.5


class Vocabulary(Layer):
    """An embedding and a head."""

    def __init__(self, context: ModelContext, *, tied: bool, softcap: float | None = None) -> None:
        self.embed = Embedding(context, "embed")
        self.head = LMHead(context, "head", tied=self.embed if tied else None, softcap=softcap)


@pytest.mark.parametrize("copy", ["absent", "equal", "different"])
def test_a_tied_head_uses_the_embedding_unless_the_checkpoint_holds_another(copy: str) -> None:
    torch.manual_seed(0)
    table, other, hidden = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN), torch.randn(3, HIDDEN)
    heads = {"absent": {}, "equal": {"head.weight": table.clone()}, "different": {"head.weight": other}}
    model = Vocabulary(make_context(), tied=True)
    load_parameters(model, Tensors({"embed.weight": table, **heads[copy]}))
    torch.testing.assert_close(model.head(hidden), hidden @ (other if copy == "different" else table).T)


def test_a_head_of_its_own_and_a_soft_cap() -> None:
    torch.manual_seed(0)
    head, hidden = torch.randn(VOCAB, HIDDEN), torch.randn(3, HIDDEN).bfloat16()
    model = Vocabulary(make_context()._replace(dtype=torch.bfloat16), tied=False, softcap=2.0)
    model.head._context.linear._reference.dtype = torch.bfloat16  # type: ignore[attr-defined]
    load_parameters(model, Tensors({"embed.weight": torch.zeros(VOCAB, HIDDEN), "head.weight": head}))
    logits = model.head(hidden)
    assert logits.dtype == torch.float32
    expected = 2 * torch.tanh(hidden.float() @ head.T / 2)
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.05)
    assert logits.abs().max() <= 2.0


def test_a_tied_quantized_table_stays_packed_in_the_head_where_a_kernel_takes_it() -> None:
    table = torch.randn(VOCAB, HIDDEN)
    tensors = Tensors({"embed.weight": table}, {"embed.weight": Q4})
    kernel, told = Recording(CPU, torch.float32), []
    load_parameters(Vocabulary(make_context({"q4": kernel}, told), tied=True), tensors)
    assert (kernel.packed, told) == ([["q4"]], [])
    without = Vocabulary(make_context({}, told), tied=True)
    load_parameters(without, tensors)
    torch.testing.assert_close(without.head(torch.eye(HIDDEN)), table.T)
    assert len(told) == 1


def test_a_tied_dense_head_shares_the_embedding_s_memory() -> None:
    model = Vocabulary(make_context({"dense": Sharing(CPU, torch.float32)}), tied=True)
    load_parameters(model, Tensors({"embed.weight": torch.randn(VOCAB, HIDDEN)}))
    assert model.head._packed.data.data_ptr() == model.embed.weight.data_ptr()


class Sharing(Reference):
    """Packs a single dense weight without copying."""

    def pack(self, weights: list[Weight]) -> torch.Tensor:
        return weights[0].data


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("silu", torch.nn.functional.silu),
        ("gelu", torch.nn.functional.gelu),
        ("gelu_pytorch_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    ],
)
def test_gated_mlp(activation: str, function: Any) -> None:
    torch.manual_seed(0)
    mlp = GatedMLP(make_context(), "mlp", activation, bias=True)
    tensors = {n: torch.randn(s) for layer in mlp.walk() for n, s in layer.shapes().items()}
    assert len(tensors) == 6
    load_parameters(mlp, Tensors(tensors))
    x = torch.randn(4, HIDDEN)

    def linear(name: str, inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(inputs, tensors[f"mlp.{name}.weight"], tensors[f"mlp.{name}.bias"])

    expected = linear("down_proj", function(linear("gate_proj", x)) * linear("up_proj", x))
    torch.testing.assert_close(mlp(x), expected)


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(InvalidValue, match="relu6"):
        GatedMLP(make_context(), "mlp", "relu6")


def component(identity: str) -> Component:
    return Component(id=identity, load="m:O", distribution="acme-ops", version="1.2")


class Provider:
    """Supplies what it is told to."""

    def __init__(self, **functions: Any) -> None:
        self.functions = {f"{name}@1": function for name, function in functions.items()}

    def ops(self) -> dict[str, Any]:
        return self.functions


def test_ops_have_an_attribute_for_every_schema() -> None:
    assert list(Ops._fields) == list(SCHEMAS)
    assert bind_ops((), lambda c: None).rope is reference.rope


def test_ops_are_bound_to_the_plan_s_providers_and_each_is_loaded_once() -> None:
    loaded: list[str] = []
    providers = {"a.ops": Provider(rope="A", rms_norm="B"), "b.ops": Provider(silu_mul="C", rope="not chosen")}

    def load(which: Component) -> Provider:
        loaded.append(which.id)
        return providers[which.id]

    bindings = [
        OpBinding(op="rope@1", provider=component("a.ops")),
        OpBinding(op="rms_norm@1", provider=component("a.ops")),
        OpBinding(op="silu_mul@1", provider=component("b.ops")),
    ]
    ops = bind_ops(bindings, load)
    assert (ops.rope, ops.rms_norm, ops.silu_mul) == ("A", "B", "C")
    assert ops.embedding is reference.embedding
    assert loaded == ["a.ops", "b.ops"]


@pytest.mark.parametrize(("op", "code"), [("rope@2", "ops.unknown"), ("silu_mul@1", "ops.missing")])
def test_a_binding_that_cannot_be_kept_names_the_distribution(op: str, code: str) -> None:
    with pytest.raises(InferplaneError, match=r"acme-ops 1\.2") as caught:
        bind_ops([OpBinding(op=op, provider=component("a.ops"))], lambda c: Provider(rope="A"))
    assert caught.value.code == code


def test_missing_and_unexpected_tensors_are_named_together() -> None:
    model = Vocabulary(make_context(), tied=False)
    table = torch.zeros(VOCAB, HIDDEN)
    with pytest.raises(InferplaneError) as caught:
        load_parameters(model, Tensors({"embed.weight": table, "extra.scale": table}))
    assert caught.value.code == "checkpoint.tensors"
    assert "misses head.weight and has unexpected extra.scale" in caught.value.message


def test_a_long_list_is_cut() -> None:
    extra = {f"extra.{i:02}": torch.zeros(1) for i in range(30)}
    with pytest.raises(InferplaneError, match=r"extra\.07 and 22 more"):
        load_parameters(Layer(), Tensors(extra))


def test_buffers_of_old_checkpoints_are_harmless() -> None:
    tensors = {"embed.weight": torch.zeros(VOCAB, HIDDEN), "layers.0.rotary_emb.inv_freq": torch.zeros(4)}
    load_parameters(Vocabulary(make_context(), tied=True), Tensors(tensors))


@pytest.mark.parametrize("part", ["embed", "head"])
def test_a_misshapen_tensor_is_named_with_both_shapes(part: str) -> None:
    tensors = {f"{n}.weight": torch.zeros(VOCAB, HIDDEN) for n in ("embed", "head")}
    tensors[f"{part}.weight"] = torch.zeros(VOCAB, HIDDEN + 1)
    with pytest.raises(InferplaneError, match=rf"{part}\.weight has shape \[20, 9\], .* \[20, 8\]") as caught:
        load_parameters(Vocabulary(make_context(), tied=False), Tensors(tensors))
    assert caught.value.code == "checkpoint.shape"


def test_parameters_outlive_the_checkpoint() -> None:
    """Its tensors are views of a mapped file."""
    table, weight = torch.ones(VOCAB, HIDDEN), torch.ones(HIDDEN)
    embedding, norm = Embedding(make_context(), "embed"), RMSNorm(make_context(), "norm", HIDDEN, 1e-6)
    embedding.read(Tensors({"embed.weight": table}))
    norm.read(Tensors({"norm.weight": weight}))
    table.zero_()
    weight.zero_()
    assert embedding(step([1])).eq(1).all()
    assert norm(torch.ones(1, HIDDEN)).gt(0.9).all()


def test_dummy_weights_fit_are_reproducible_and_differ_by_seed_and_name() -> None:
    context = make_context()
    model = Vocabulary(context, tied=False)
    checkpoint = DummyCheckpoint(model, torch.float32, seed=1)
    load_parameters(model, checkpoint)
    again, other = DummyCheckpoint(model, torch.float32, seed=1), DummyCheckpoint(model, torch.float32, seed=2)
    first = checkpoint.tensor("embed.weight")
    assert torch.equal(first, again.tensor("embed.weight"))
    assert not torch.equal(first, other.tensor("embed.weight"))
    assert not torch.equal(first, checkpoint.tensor("head.weight"))
    assert 0.01 < float(first.std()) < 0.04
    norm = DummyCheckpoint(RMSNorm(context, "a.norm", HIDDEN, 1e-6), torch.bfloat16)
    assert torch.equal(norm.tensor("a.norm.weight"), torch.ones(HIDDEN, dtype=torch.bfloat16))


def test_a_renamed_checkpoint_hides_the_rest() -> None:
    inner = Tensors({"text.embed.weight": torch.ones(2, 3), "vision.weight": torch.zeros(1)})
    renamed = RenamedCheckpoint(inner, {"embed.weight": "text.embed.weight"})
    assert list(renamed.names()) == ["embed.weight"]
    assert renamed.weight("embed.weight").shape == (2, 3)
    with pytest.raises(KeyError):
        renamed.tensor("vision.weight")
