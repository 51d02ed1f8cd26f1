"""What users of vLLM type: taken where it means the same, refused with advice where it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferplane.config import Config
from inferplane.config.environment import VLLM_VARIABLES
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.config.parser import Parser
from inferplane.config.vllm_flags import VARIABLES, foreign, own_flags, vllm_flags
from inferplane.errors import InvalidValue

SPECIFIED = """
--host --port --uds --uvicorn-log-level --allow-credentials --allowed-origins --allowed-methods --allowed-headers
--api-key --ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --root-path --middleware --lora-modules
--chat-template --chat-template-content-format --trust-request-chat-template --default-chat-template-kwargs
--response-role --return-tokens-as-token-ids --enable-auto-tool-choice --tool-call-parser --tool-parser-plugin
--tool-server --max-log-len --enable-prompt-tokens-details --enable-server-load-tracking --enable-force-include-usage
--enable-tokenizer-info-endpoint --enable-log-requests --enable-log-outputs --log-error-stack --disable-fastapi-docs
--enable-offline-docs --enable-request-id-headers --headless --api-server-count --grpc --tokenizer --tokenizer-mode
--trust-remote-code --revision --download-dir --load-format --dtype --seed --max-model-len --quantization
--enforce-eager --max-logprobs --logprobs-mode --served-model-name --generation-config --override-generation-config
--hf-overrides --model-impl --runner --convert --enable-sleep-mode --enable-prompt-embeds --allowed-local-media-path
--allowed-media-domains --limit-mm-per-prompt --reasoning-parser --structured-outputs-config --block-size
--gpu-memory-utilization --kv-cache-memory-bytes --kv-cache-dtype --num-gpu-blocks-override --enable-prefix-caching
--prefix-caching-hash-algo --cpu-offload-gb --kv-offloading-size --kv-offloading-backend --max-num-batched-tokens
--max-num-seqs --enable-chunked-prefill --max-num-partial-prefills --scheduling-policy --async-scheduling
--stream-interval --disable-hybrid-kv-cache-manager --max-num-queued-reqs --max-num-queued-tokens
--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --decode-context-parallel-size
--prefill-context-parallel-size --enable-expert-parallel --all2all-backend --enable-eplb
--distributed-executor-backend --nnodes --node-rank --master-addr --master-port --data-parallel-rpc-port --enable-lora
--max-loras --max-lora-rank --max-cpu-loras --speculative-config --kv-transfer-config --compilation-config
--attention-backend --otlp-traces-endpoint --disable-log-stats --profiler-config
""".split()  # noqa: SIM905
"""The flags that users of vLLM bring along."""


def parse(*words: str, environ: dict[str, str] | None = None) -> Config:
    parser = Parser(prog="p")
    add_config_flags(parser)
    return collect_config(parser.parse_args(words), environ or {})


@pytest.mark.parametrize("flag", SPECIFIED)
def test_every_flag_is_known(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It exists, it is another name of one that exists, or its refusal says what to do."""
    if flag in own_flags():
        assert foreign(flag) is None
        return
    found = foreign(flag)
    assert found is not None
    if found.ours is not None:
        assert found.ours in own_flags()
        return
    with pytest.raises(SystemExit):
        parse(flag, "1")
    error = capsys.readouterr().err
    assert f"{flag} is a flag of vLLM's" in error
    assert found.advice in error


def test_the_table_is_sound() -> None:
    rows = vllm_flags()
    assert len({row.flag for row in rows}) == len(rows)
    for row in rows:
        assert (row.status == "same") == (row.flag in own_flags()), row.flag
        assert (row.status == "alias") == bool(row.ours), row.flag
        assert row.status in ("same", "alias") or row.advice, row.flag
        named = set(re.findall(r"--[a-z][a-z-]+", row.advice))
        assert named <= own_flags() | {row.flag}, row.flag


@pytest.mark.parametrize(("theirs", "ours"), [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")])
def test_their_words_for_types_are_taken_everywhere(theirs: str, ours: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"dtype: {theirs}\n")
    for config in (
        parse("--dtype", theirs),
        parse("--config", str(file)),
        parse(environ={"INFERPLANE_DTYPE": theirs}),
        Config.from_flat({"dtype": theirs}),
    ):
        assert config.model.dtype == ours


def test_an_alias_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert parse("--num-gpu-blocks-override", "7").cache.num_pages_override == 7
    assert "--num-pages-override" in capsys.readouterr().err
    assert parse("--num_gpu_blocks_override=8").cache.num_pages_override == 8
    path = tmp_path / "c.yaml"
    path.write_text("num-gpu-blocks-override: 9\n")
    assert parse("--config", str(path)).cache.num_pages_override == 9
    assert Config.from_flat({"num_gpu_blocks_override": 5}).cache.num_pages_override == 5


def test_two_names_of_one_thing_are_refused() -> None:
    with pytest.raises(InvalidValue, match="is num_pages_override, which is given too"):
        Config.from_flat({"num_gpu_blocks_override": 5, "num_pages_override": 5})


@pytest.mark.parametrize(
    "word", ["-tp", "-tp8", "-O3", "-dp=2", "--no-enable-chunked-prefill", "--gpu_memory_utilization=1"]
)
def test_other_spellings(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(word)
    assert "is a flag of vLLM's" in capsys.readouterr().err


def test_keywords_get_the_same_advice() -> None:
    with pytest.raises(InvalidValue) as caught:
        Config.from_flat({"gpu_memory_utilization": 0.5})
    assert "--memory-utilization" in caught.value.remedy


def test_variables_of_vllm_come_last(tmp_path: Path) -> None:
    theirs = {"VLLM_API_KEY": "theirs", "VLLM_LOGGING_LEVEL": "DEBUG"}
    config = parse(environ=theirs)
    assert (config.server.api_key, config.server.log_level) == (("theirs",), "debug")
    assert config.origin("api_key") == "variable VLLM_API_KEY"
    path = tmp_path / "c.yaml"
    path.write_text("api_key: file\n")
    assert parse("--config", str(path), environ=theirs).server.api_key == ("file",)
    assert parse(environ={**theirs, "INFERPLANE_API_KEY": "ours"}).server.api_key == ("ours",)
    assert {name for name, (status, _) in VARIABLES.items() if status == "read"} == set(VLLM_VARIABLES)
