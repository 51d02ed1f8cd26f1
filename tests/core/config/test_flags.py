"""Flags, the YAML file and keyword settings are one list of fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferplane.cli.main import main
from inferplane.config import Config
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.config.parser import Parser
from inferplane.errors import InvalidValue


def parse(*words: str) -> Config:
    parser = Parser()
    add_config_flags(parser)
    return collect_config(parser.parse_args(words))


def test_no_flags_give_the_defaults() -> None:
    assert parse() == Config()


def test_every_field_has_a_flag_and_a_description() -> None:
    parser = Parser()
    add_config_flags(parser)
    flags = set(parser._option_string_actions)
    for info in Config.model_fields.values():
        for name, field in info.annotation.model_fields.items():
            assert "--" + name.replace("_", "-") in flags
            assert field.description


def test_kinds_of_values() -> None:
    config = parse(
        "--max-model-len", "32K", "--dtype", "float32", "--no-enable-prefix-caching",
        "--api-key", "a", "b", "--hf-overrides", '{"a": [1]}',
        "--platform-option", "x=1", "--platform-option", "y=a=b", "--memory-utilization", "0.5",
    )  # fmt: skip
    assert config.model.max_model_len == 32 * 1024
    assert parse("--max-model-len", "32k").model.max_model_len == 32_000
    assert config.model.dtype == "float32"
    assert config.cache.enable_prefix_caching is False
    assert config.server.api_key == ("a", "b")
    assert config.model.hf_overrides == {"a": [1]}
    assert config.platform.platform_option == {"x": "1", "y": "a=b"}
    assert config.cache.memory_utilization == 0.5


def test_the_file_gives_values_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("max-model-len: 16k\nmax_num_seqs: 3\n")
    config = parse("--config", str(path), "--max-num-seqs", "5")
    assert (config.model.max_model_len, config.scheduler.max_num_seqs) == (16_000, 5)


@pytest.mark.parametrize(
    "data", [b"- a\n", b"a: [", b"\xff\xfe", b"max_num_sequences: 3\n", b"max_num_seqs: many\n", b"api_key: ''\n"]
)
def test_a_bad_file_is_an_error_of_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(data)
    with pytest.raises(InvalidValue) as caught:
        parse("--config", str(path))
    assert "\n" not in caught.value.message


def test_one_name_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("api_key: secret\nserved_model_name: [a, b]\n")
    config = parse("--config", str(path))
    assert (config.server.api_key, config.model.served_model_name) == (("secret",), ("a", "b"))


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(InvalidValue, match="api_key"):
        parse("--api-key", "")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="cannot be read"):
        parse("--config", str(tmp_path / "none.yaml"))


def test_an_unknown_flag_is_an_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--max-modellen", "3")
    assert "did you mean --max-model-len?" in capsys.readouterr().err


def test_the_program_suggests_the_flags_of_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--max-model-le", "3"])
    assert "did you mean --max-model-len?" in capsys.readouterr().err


def test_a_flag_that_exists_is_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--dtype", "int4")
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_model_len", 0), ("dtype", "int7"), ("memory_utilization", 1.5), ("port", 70000), ("max_model_len", "x")],
)
def test_a_bad_value_names_the_field(name: str, value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        Config.from_flat({name: value})
    assert caught.value.field == name


def test_an_unknown_setting_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(InvalidValue, match="did you mean 'max_num_seqs'"):
        Config.from_flat({"max_num_seq": 3})


def test_a_key_comes_from_the_environment_where_no_flag_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERPLANE_API_KEY", "secret")
    assert parse().server.api_key == ("secret",)
    assert parse("--api-key", "other").server.api_key == ("other",)


def test_two_different_models_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    from inferplane.cli import main

    assert main.main(["serve", "--show-config", "--model", "one", "two"]) == 1
    error = capsys.readouterr().err
    assert "model='one'" in error
    assert "'two'" in error
    assert main.main(["serve", "--show-config", "--model", "one", "one"]) == 0
    assert '\nmodel: "one"' in capsys.readouterr().out


def test_a_model_swallowed_by_a_flag_is_not_replaced_by_the_default(tmp_path: Path) -> None:
    from inferplane.cli import main

    assert main.main(["serve", "--api-key", "k", str(tmp_path)]) == 1
