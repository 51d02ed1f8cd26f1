"""Every setting has a variable, and a variable means what its flag means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferplane.config import Config
from inferplane.config.annotations import settings
from inferplane.config.environment import UNREAD, variable_of
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.config.parser import Parser
from inferplane.config.show import as_yaml, said_line
from inferplane.errors import InvalidValue
from inferplane.plugins.variables import unknown_variables


def parse(*words: str, **environ: str) -> Config:
    parser = Parser(prog="p")
    add_config_flags(parser)
    return collect_config(parser.parse_args(words), environ)


def other(field: Any) -> Any:
    """A value that is not the default, as a variable says it, and as the configuration holds it."""
    annotation = str(field.annotation)
    if "bool" in annotation:
        return str(not field.default).lower(), not field.default
    if "Literal" in annotation:
        found = field.annotation.__args__[-1]
        return found.upper(), found
    if "tuple" in annotation:
        return "word", ("word",)
    if "dict" in annotation:
        return '{"a": "b"}', {"a": "b"}
    if "int" in annotation:
        value = {True: 2, False: 4096}[field.default in (0, 1) or "ssl" in (field.description or "")]
        return str(value), value
    return ("0.25", 0.25) if "float" in annotation else ("word", "word")


@pytest.mark.parametrize("name", [name for name in settings() if name not in UNREAD])
def test_every_setting_can_be_said_by_its_variable(name: str) -> None:
    text, value = other(settings()[name])
    config = parse(**{variable_of(name): text})
    assert config.said() == {name: value}
    assert config.origin(name) == f"variable {variable_of(name)}"


def test_flags_over_variables_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("max_num_seqs: 1\nport: 1\nmax_model_len: 1k\n")
    config = parse("--config", str(path), "--port", "3", INFERPLANE_PORT="2", INFERPLANE_MAX_NUM_SEQS="2")
    assert (config.server.port, config.scheduler.max_num_seqs, config.model.max_model_len) == (3, 2, 1000)


def test_an_empty_variable_says_nothing() -> None:
    assert parse(INFERPLANE_API_KEY="", INFERPLANE_PORT="") == Config()


def test_lists() -> None:
    config = parse(INFERPLANE_API_KEY="a,b", INFERPLANE_DISABLE_PLUGINS="x, y", INFERPLANE_ALLOWED_ORIGINS="a,b")
    assert config.server.api_key == ("a,b",), "a key may hold a comma"
    assert config.platform.disable_plugins == ("x", "y")
    assert config.server.allowed_origins == ("a", "b")


@pytest.mark.parametrize(("variable", "value"), [
    ("INFERPLANE_PORT", "many"),
    ("INFERPLANE_DTYPE", "int3"),
    ("INFERPLANE_USE_MODELSCOPE", "perhaps"),
    ("INFERPLANE_HF_OVERRIDES", "{"),
])  # fmt: skip
def test_a_bad_value_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(**{variable: value})
    assert variable in str(caught.value)


def test_a_bad_value_of_the_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("port: many\n")
    with pytest.raises(InvalidValue, match=r"c\.yaml"):
        parse("--config", str(path))


def test_an_unknown_variable_is_told_with_the_nearest() -> None:
    (problem,) = unknown_variables({"INFERPLANE_MAX_MODEL_LENGTH": "1", "INFERPLANE_PORT": "1"}, ())
    assert problem.remedy == "did you mean INFERPLANE_MAX_MODEL_LEN?"


def test_what_was_said_is_shown_without_secrets() -> None:
    options = {"INFERPLANE_PLATFORM_OPTION": json.dumps({"acme_token": "hush1", "power": "5"})}
    config = parse("--api-key", "hush2", "hush3", "--port", "1", **options)
    line = said_line(config)
    assert "port=1 (flag --port)" in line
    assert "api_key=<2 not shown> (flag --api-key)" in line
    assert '"power": "5"' in line
    assert "hush" not in line + as_yaml(config)
    assert said_line(Config()) == ""


def test_the_shown_configuration_can_be_read_again(tmp_path: Path) -> None:
    words = ["--max-model-len", "4k", "--allowed-origins", "a", "--hf-overrides", '{"x": [1, "y: z"]}', "--host", "::1"]
    config = parse(*words, "--no-enable-prefix-caching")
    path = tmp_path / "c.yaml"
    path.write_text(as_yaml(config))
    again = parse("--config", str(path))
    assert again == config
    assert again.said() == config.said()
    assert set(yaml.safe_load("\n".join(line.lstrip("# ") for line in as_yaml(config).splitlines() if ": " in line)))


@pytest.mark.parametrize(("words", "value"), [
    (["--hf-overrides.a.b", "5"], {"a": {"b": 5}}),
    (["--hf-overrides.a=text", "--hf_overrides.c_d", "[1]"], {"a": "text", "c_d": [1]}),
    (["--hf-overrides", '{"a": {"x": 1}}', "--hf-overrides.a.y", "true"], {"a": {"x": 1, "y": True}}),
    (["--hf-overrides", '{"a": 1}', "--hf-overrides", '{"a": {"b": 2}}'], {"a": {"b": 2}}),
])  # fmt: skip
def test_objects_by_their_keys(words: list[str], value: object) -> None:
    assert parse(*words).model.hf_overrides == value


def test_pairs_by_their_names() -> None:
    config = parse("--platform-option.a", "1", "--platform-option", "b=2", "--platform-option.c.d=x=y")
    assert config.platform.platform_option == {"a": "1", "b": "2", "c.d": "x=y"}


@pytest.mark.parametrize("words", [["--port.x", "1"], ["--hf-overrides.a"], ["--hf-overrides..a", "1"]])
def test_other_flags_have_no_keys(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*words)


def help_of(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(word)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    overview = help_of("--help", capsys)
    assert "--max-num-seqs" not in overview
    assert all(f"--help={section}" in overview for section in Config.model_fields)
    one = help_of("--help=Scheduler", capsys)
    assert "--max-num-seqs" in one
    assert "--port" not in one
    everything = help_of("--help=all", capsys)
    assert all(f"--{name.replace('_', '-')}" in everything for name in settings())
    assert help_of("--help=max_num_seqs", capsys).count("--max-num") == 1
    assert "--ssl-keyfile" in help_of("--help=certificate", capsys)


def test_help_for_nothing_names_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help=zebra")
    assert caught.value.code == 2
    assert "scheduler" in capsys.readouterr().err


def test_values_that_look_like_flags_stay_values() -> None:
    assert parse("--max-logprobs", "-1").model.max_logprobs == -1
