"""What a measurement prints and writes; computes nothing."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferplane.bench.statistics import METRICS, percentile_label
from inferplane.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 50


def serving_text(result: dict[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """The table that users of vLLM's tool know, line for line."""
    lines = ["{s:{c}^{n}}".format(s=" Serving Benchmark Result ", n=WIDTH, c="=")]
    lines.append(_line("Successful requests:", result["completed"]))
    lines.append(_line("Failed requests:", result["failed"]))
    lines += [_line(f"  {kind}:", count) for kind, count in sorted(result["failures"].items())]
    if result["max_concurrency"] is not None:
        lines.append(_line("Maximum request concurrency:", result["max_concurrency"]))
    if result["request_rate"] != "inf":
        lines.append(_line("Request rate configured (RPS):", result["request_rate"]))
    lines.append(_line("Benchmark duration (s):", result["duration"]))
    lines.append(_line("Total input tokens:", result["total_input_tokens"]))
    if result["total_cached_tokens"] is not None:
        lines.append(_line("  of them from the server's cache:", result["total_cached_tokens"]))
    lines.append(_line("Total generated tokens:", result["total_output_tokens"]))
    lines.append(_line("Request throughput (req/s):", result["request_throughput"]))
    if result["request_goodput"] is not None:
        lines.append(_line("Request goodput (req/s):", result["request_goodput"]))
    lines.append(_line("Output token throughput (tok/s):", result["output_throughput"]))
    lines.append(_line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"]))
    lines.append(_line("Peak concurrent requests:", float(result["max_concurrent_requests"])))
    lines.append(_line("Total token throughput (tok/s):", result["total_token_throughput"]))
    for name in METRICS:
        lines.append("{s:{c}^{n}}".format(s=METRICS[name], n=WIDTH, c="-"))
        label = name.upper()
        lines.append(_line(f"Mean {label} (ms):", result[f"mean_{name}_ms"]))
        lines.append(_line(f"Median {label} (ms):", result[f"median_{name}_ms"]))
        if name in metrics:
            for each in percentiles:
                key = percentile_label(each)
                lines.append(_line(f"{key.upper()} {label} (ms):", result[f"{key}_{name}_ms"]))
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write a result, making the folder. Raises InvalidValue where that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidValue("result_filename", str(path), f"cannot be written: {error.strerror}") from error


def where() -> dict[str, str]:
    """The versions and the machine that a figure is worth nothing without."""
    from inferplane import __version__

    return {
        "inferplane_version": __version__,
        "python_version": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"
