"""Which format reads a checkpoint, and cards of plugins' formats: made in a child, cached, rebuilt when damaged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inferplane.checkpoint.card import read_card
from inferplane.checkpoint.card_cache import CardCache, make_card
from inferplane.config.schema import ModelConfig
from inferplane.errors import InferplaneError, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = """
derived = cache / "tokenizer.json"
derived.write_text('{"made": true}')
with open(path.with_suffix(".log"), "a") as log:
    log.write("read ")
print("noise on stdout")
return CheckpointCard(
    config={"model_type": "llama", "rope": {"theta": 1, "kind": "a"}},
    tokenizer_json=str(derived),
    chat_template="own template",
    files=(str(path),),
)
"""


def config(**values: Any) -> ModelConfig:
    return ModelConfig.model_validate({"model": "x", **values})


def failure(action: Callable[[], Any]) -> InferplaneError:
    with pytest.raises(InferplaneError) as caught:
        action()
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def acme_file(tmp_path: Path) -> Path:
    """A checkpoint of the plugin's format."""
    file = tmp_path / "model.acme"
    file.write_bytes(b"ACME")
    return file


def times_read(file: Path) -> int:
    return len(file.with_suffix(".log").read_text().split())


@pytest.mark.usefixtures("cache")
def test_folder_is_read_by_the_builtin_format(builtin: Any, tiny_llama_dir: Path) -> None:
    card, format_id = read_card(tiny_llama_dir, [builtin], config())

    assert format_id == "hf.safetensors"
    assert card.config == json.loads((tiny_llama_dir / "config.json").read_text())


def test_file_is_read_by_suffix_in_a_child_and_cached(
    cache: Path, builtin: Any, make_plugin: Callable[..., Any], acme_file: Path
) -> None:
    plugin = make_plugin(GOOD)

    first = read_card(acme_file, [builtin, plugin], config())
    second = read_card(acme_file, [builtin, plugin], config())

    assert first == second
    card, format_id = first
    assert format_id == "acme.file"
    assert card.tokenizer_json is not None
    assert card.tokenizer_json.startswith(str(cache))
    assert times_read(acme_file) == 1
    assert "acme_format" not in sys.modules


@pytest.mark.usefixtures("cache")
def test_the_card_is_made_again_when_the_checkpoint_or_the_format_changes(
    builtin: Any, make_plugin: Callable[..., Any], acme_file: Path
) -> None:
    read_card(acme_file, [builtin, make_plugin(GOOD)], config())
    read_card(acme_file, [builtin, make_plugin(GOOD, version="1.1")], config())
    assert times_read(acme_file) == 2
    acme_file.write_bytes(b"ACME 2")
    read_card(acme_file, [builtin, make_plugin(GOOD, version="1.1")], config())
    assert times_read(acme_file) == 3


@pytest.mark.usefixtures("cache")
def test_edited_code_of_the_same_version_makes_the_card_again(make_plugin: Callable[..., Any], acme_file: Path) -> None:
    read_card(acme_file, [make_plugin(GOOD)], config())

    card, _ = read_card(acme_file, [make_plugin(GOOD.replace("own template", "another"))], config())

    assert card.chat_template == "another"


@pytest.mark.parametrize("damage", ["truncate", "flip", "tokenizer", "no tokenizer", "foreign"])
def test_damaged_cache_is_noticed_and_rebuilt(
    cache: Path, make_plugin: Callable[..., Any], acme_file: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = make_plugin(GOOD)
    good, _ = read_card(acme_file, [plugin], config())
    [stored] = cache.rglob("card.json")
    tokenizer = stored.parent / "tokenizer.json"
    if damage == "truncate":
        stored.write_bytes(stored.read_bytes()[:-20])
    elif damage == "flip":
        stored.write_bytes(stored.read_bytes().replace(b"own template", b"owm template"))
    elif damage == "tokenizer":
        tokenizer.write_text('{"made": fals}')
    elif damage == "no tokenizer":
        tokenizer.unlink()
    else:
        stored.write_bytes(b"\xff\x00")

    assert read_card(acme_file, [plugin], config())[0] == good
    assert times_read(acme_file) == 2
    assert tokenizer.read_text() == '{"made": true}'
    assert "damaged" in caplog.text


@pytest.mark.usefixtures("cache")
def test_the_format_s_own_error_comes_through(make_plugin: Callable[..., Any], acme_file: Path) -> None:
    plugin = make_plugin('raise InferplaneError("bad header", code="acme.header", remedy="fetch it again")')

    error = failure(lambda: read_card(acme_file, [plugin], config()))

    assert (error.message, error.code, error.remedy) == ("bad header", "acme.header", "fetch it again")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('vocab')", "KeyError: 'vocab'"),
        ("return {}", "gave dict instead of a CheckpointCard"),
        (
            "sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(7)",
            "status 7, its last line on stderr: out of",
        ),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_a_format_that_fails_is_named(make_plugin: Callable[..., Any], acme_file: Path, body: str, said: str) -> None:
    error = failure(lambda: read_card(acme_file, [make_plugin(body)], config()))

    assert error.code == "checkpoint.format_failed"
    assert "acme-inferplane 1.0" in error.message
    assert said in error.message


def test_a_format_that_hangs_is_killed(make_plugin: Callable[..., Any], acme_file: Path, tmp_path: Path) -> None:
    plugin = make_plugin("time.sleep(60)")

    error = failure(lambda: make_card(acme_file, tmp_path, plugin, timeout=1.0))

    assert error.code == "checkpoint.format_failed"
    assert "no answer within 1 s" in error.message


def test_what_a_hung_format_started_is_killed_with_it(
    make_plugin: Callable[..., Any], acme_file: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    body = (
        "import subprocess; helper = subprocess.Popen(['sleep', '60']);"
        f" open({str(pid)!r}, 'w').write(str(helper.pid)); time.sleep(60)"
    )
    failure(lambda: make_card(acme_file, tmp_path, make_plugin(body), timeout=3.0))
    deadline = time.monotonic() + 10
    while _runs(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(int(pid.read_text()))


def _runs(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_format_sees_no_secret(
    make_plugin: Callable[..., Any], acme_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INFERPLANE_API_KEY", "HF_TOKEN", "MODELSCOPE_API_TOKEN", "ACME_SECRET", "ACME_TOKENS"):
        monkeypatch.setenv(name, "sesame")
    body = "raise RuntimeError(sorted(name for name in os.environ if os.environ[name] == 'sesame'))"
    assert "['ACME_TOKENS']" in failure(lambda: read_card(acme_file, [make_plugin(body)], config())).message


def test_a_failure_is_not_cached(make_plugin: Callable[..., Any], acme_file: Path, tmp_path: Path) -> None:
    cards = CardCache(tmp_path / "cards")
    failure(lambda: cards.get(acme_file, make_plugin("raise KeyError")))

    assert cards.get(acme_file, make_plugin(GOOD)).chat_template == "own template"


@pytest.mark.usefixtures("cache")
def test_two_processes_make_a_card_once(make_plugin: Callable[..., Any], acme_file: Path) -> None:
    plugin = make_plugin(GOOD)
    script = (
        "import sys\n"
        "from collections import namedtuple\n"
        "from pathlib import Path\n"
        "from inferplane.checkpoint.card import read_card\n"
        "from inferplane.config.schema import ModelConfig\n"
        "from inferplane_api.spec import WeightFormatSpec\n"
        "Found = namedtuple('Found', 'spec distribution version')\n"
        "spec = WeightFormatSpec(id='acme.file', load='acme_format:Format', name='acme', file_suffixes=('.acme',))\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "print(read_card(Path(sys.argv[1]), [Found(spec, 'acme', '1')], ModelConfig())[1])\n"
        "assert 'torch' not in sys.modules and 'acme_format' not in sys.modules\n"
    )
    arguments = [sys.executable, "-c", script, str(acme_file), str(acme_file.parent / "site")]
    assert plugin.spec.load == "acme_format:Format"

    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]

    assert outputs == ["acme.file", "acme.file"]
    assert times_read(acme_file) == 1


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """A folder whose config names a quantization."""
    folder = tmp_path / "quantized"
    folder.mkdir()
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "acmeq"}}')
    (folder / "model.safetensors").write_bytes(b"")
    return folder


FOLDER_CARD = "return CheckpointCard(config={}, files=(str(path / 'model.safetensors'),))"


@pytest.mark.usefixtures("cache")
def test_quantized_folder_without_its_format(builtin: Any, make_plugin: Callable[..., Any], quantized: Path) -> None:
    error = failure(lambda: read_card(quantized, [builtin, make_plugin(GOOD)], config()))

    assert error.code == "checkpoint.unknown_quantization"
    assert "acmeq" in error.message
    assert "acme, safetensors" in error.remedy


@pytest.mark.usefixtures("cache")
def test_quantized_folder_with_its_format(builtin: Any, make_plugin: Callable[..., Any], quantized: Path) -> None:
    plugin = make_plugin(FOLDER_CARD, file_suffixes=(), quant_methods=("acmeq",))

    for values in ({}, {"quantization": "acmeq"}, {"quantization": "ACME"}, {"load_format": "acme.file"}):
        assert read_card(quantized, [builtin, plugin], config(**values))[1] == "acme.file"


@pytest.mark.usefixtures("cache")
def test_two_formats_for_one_checkpoint(builtin: Any, make_plugin: Callable[..., Any], quantized: Path) -> None:
    plugins = [
        make_plugin(FOLDER_CARD, name=name, file_suffixes=(), quant_methods=("acmeq",)) for name in ("acme", "other")
    ]

    error = failure(lambda: read_card(quantized, [builtin, *plugins], config()))
    assert error.code == "checkpoint.ambiguous_format"
    assert "other-inferplane" in error.message
    assert read_card(quantized, [builtin, *plugins], config(load_format="other"))[1] == "other.file"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"load_format": "pt"}, "load_format", "installed are: acme, safetensors"),
        ({"quantization": "awq"}, "quantization", "installed are: acme, safetensors"),
        ({"load_format": "safetensor"}, "load_format", "did you mean 'safetensors'"),
    ],
)
def test_unknown_format_names(
    builtin: Any, make_plugin: Callable[..., Any], tiny_llama_dir: Path, values: Any, field: str, said: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        read_card(tiny_llama_dir, [builtin, make_plugin(GOOD)], config(**values))

    assert caught.value.field == field
    assert said in caught.value.remedy


@pytest.mark.usefixtures("cache")
def test_a_format_that_does_not_fit_is_an_error(
    builtin: Any, make_plugin: Callable[..., Any], tiny_llama_dir: Path, acme_file: Path, quantized: Path
) -> None:
    file_format = make_plugin(GOOD)
    folder_format = make_plugin(FOLDER_CARD, name="other", file_suffixes=(), quant_methods=("otherq",))
    formats = [builtin, file_format, folder_format]

    for path, values in (
        (tiny_llama_dir, {"load_format": "acme"}),
        (tiny_llama_dir, {"quantization": "otherq"}),
        (quantized, {"quantization": "otherq"}),
        (quantized, {"load_format": "safetensors"}),
        (acme_file, {"load_format": "safetensors"}),
    ):
        with pytest.raises(InvalidValue):
            read_card(path, formats, config(**values))


@pytest.mark.usefixtures("cache")
def test_unknown_file(builtin: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")

    error = failure(lambda: read_card(file, [builtin], config()))

    assert error.code == "checkpoint.unknown_format"
    assert "inferplane-quantization" in error.remedy


@pytest.mark.usefixtures("cache")
def test_weights_must_be_there_unless_they_are_dummies(builtin: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert read_card(tmp_path, [builtin], config(load_format="dummy"))[0].files == ()
    assert failure(lambda: read_card(tmp_path, [builtin], config())).code == "checkpoint.no_weights"
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    error = failure(lambda: read_card(tmp_path, [builtin], config()))
    assert error.code == "checkpoint.missing_file"
    assert "gone.safetensors" in error.message
    assert read_card(tmp_path, [builtin], config(), weights=False)[0].files == (str(tmp_path / "gone.safetensors"),)


@pytest.mark.usefixtures("cache")
def test_overrides_are_merged(make_plugin: Callable[..., Any], acme_file: Path) -> None:
    plugin = make_plugin(GOOD)
    overrides = {"rope": {"theta": 2, "factor": None}, "model_type": "qwen3", "new": [1]}

    card, _ = read_card(acme_file, [plugin], config(hf_overrides=overrides))

    assert card.config == {"model_type": "qwen3", "rope": {"theta": 2, "kind": "a", "factor": None}, "new": [1]}
    assert read_card(acme_file, [plugin], config())[0].config["model_type"] == "llama"


@pytest.mark.usefixtures("cache")
def test_separate_tokenizer(
    make_plugin: Callable[..., Any], make_tiny_tokenizer: Callable[[Path], None], acme_file: Path, tmp_path: Path
) -> None:
    plugin = make_plugin(GOOD)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    make_tiny_tokenizer(folder)

    for named in (folder, folder / "tokenizer.json"):
        card, _ = read_card(acme_file, [plugin], config(tokenizer=str(named)))
        assert card.tokenizer_json == str(folder / "tokenizer.json")
        assert card.tokenizer_config["eos_token"] == "<|im_end|>"
        assert card.chat_template is not None
        assert "<|im_start|>" in card.chat_template

    (folder / "tokenizer_config.json").unlink()
    assert read_card(acme_file, [plugin], config(tokenizer=str(folder)))[0].chat_template == "own template"
    with pytest.raises(InvalidValue, match="no tokenizer"):
        read_card(acme_file, [plugin], config(tokenizer=str(tmp_path)))
