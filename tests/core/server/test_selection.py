"""The record of a selection is one and the same for `explain --json`, /server_info and the metrics."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferplane.cli.main import main
from inferplane.config.flags import add_config_flags, collect_config
from inferplane.config.parser import Parser
from inferplane.launch import make_plan, prepare_front_end
from inferplane.launch_types import Service
from inferplane.messages import Stats
from inferplane.server.app import create_app


async def served(flags: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """/server_info and the metrics of a server started with the flags, its engine still starting."""
    parser = Parser()
    add_config_flags(parser)
    planned = make_plan(collect_config(parser.parse_args(flags)))
    client: Any = SimpleNamespace(
        state="starting", failure=None, engine_timeline=[], capacity=None, stats=Stats(), client_id="test"
    )
    app = create_app(Service(prepare_front_end(planned), client))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        info = (await http.get("/server_info")).json()
        metrics = (await http.get("/metrics")).text
    return info, {family.name: family.samples for family in text_string_to_metric_families(metrics)}


async def test_explain_prints_what_the_server_tells(
    tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERPLANE_PLUGINS", "inferplane-cpu")
    file = tmp_path / "settings.yaml"
    file.write_text("seed: 3\nmax-num-seqs: 8\n")
    flags = ["--model", str(tiny_llama_dir), "--platform", "cpu", "--config", str(file), "--max-num-seqs", "4"]
    info, metrics = await served(flags)
    capsys.readouterr()
    assert main(["explain", *flags, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert info["selection"] == record
    settings = {setting["path"]: (setting["value"], setting["source"]) for setting in record["settings"]}
    assert settings["model.seed"] == ("3", f"file {file}")
    assert settings["scheduler.max_num_seqs"] == ("4", "flag --max-num-seqs")
    assert settings["platform.platform"] == ("cpu", "flag --platform")
    shown = {(sample.labels["subject"], sample.labels["chosen"]) for sample in metrics["inferplane:selection_info"]}
    assert shown == {(decision["subject"], decision["chosen"]) for decision in record["decisions"]}


async def test_ops_on_the_reference_are_counted_only_where_a_plugin_could_do_better(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERPLANE_PLUGINS", "inferplane-cpu")
    info, metrics = await served(["--model", str(tiny_llama_dir), "--platform", "cpu"])
    on_reference = {
        decision["subject"].removeprefix("op ")
        for decision in info["selection"]["decisions"]
        if decision["subject"].startswith(("op ", "linear dense"))
        and decision["chosen"] in ("reference.ops", "reference.linear")
    }
    assert {sample.labels["op"] for sample in metrics.get("inferplane:reference_ops", [])} == on_reference
    assert on_reference, "the CPU platform brings some ops only"
    _, metrics = await served(["--model", str(tiny_llama_dir), "--platform", "reference"])
    assert "inferplane:reference_ops" not in metrics
