"""Pictures of a serving measurement: HTML with inline SVG by itself, PNG through matplotlib. Computes no figure."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inferplane.bench.statistics import METRICS, samples_of
from inferplane.errors import InferplaneError, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferplane.bench.statistics import Outcome

KINDS = (".html", ".png")
MAX_POINTS = 400


class Panel(NamedTuple):
    """One line in one pair of axes."""

    title: str
    x_label: str
    y_label: str
    x: list[float]
    y: list[float]
    marks: list[tuple[str, float]]
    """Labelled values of x."""


def check_plot_path(path: Path) -> None:
    """Before the measurement, so that it isn't lost. Raises InvalidValue for a kind, InferplaneError for a package."""
    if path.suffix.lower() not in KINDS:
        raise InvalidValue("plot", str(path), f"must end in {' or '.join(KINDS)}")
    if path.suffix.lower() == ".png":
        _import_matplotlib()


def make_panels(outcomes: Sequence[Outcome]) -> list[Panel]:
    """The share of values below each value for the four latencies, and tokens over time."""
    panels = [_distribution(name, values) for name, values in samples_of(outcomes).items() if values]
    times = np.asarray([time for o in outcomes if o.ok for time in o.chunk_times])
    if times.size:
        # A chunk may hold several tokens: it counts for the mean of its request.
        weights = np.asarray(
            [o.output_tokens / len(o.chunk_times) for o in outcomes if o.ok for _ in o.chunk_times], dtype=np.float64
        )
        start = min(o.started for o in outcomes)
        span = max(float(times.max()) - start, 1e-3)
        counts, edges = np.histogram(times - start, bins=60, range=(0.0, span), weights=weights)
        rate = counts / (edges[1] - edges[0])
        middle = (edges[1:] + edges[:-1]) / 2
        panels.append(Panel("Output tokens over time", "seconds", "tokens/s", middle.tolist(), rate.tolist(), []))
    return panels


def write_plot(path: Path, outcomes: Sequence[Outcome], result: dict[str, Any], text: str) -> None:
    """Write the picture. Raises InvalidValue where the file cannot be written."""
    panels = make_panels(outcomes)
    title = f"{result['model_id']} on {result['base_url']}, {result['date']}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".png":
            _write_png(path, panels, title)
        else:
            path.write_text(render_html(panels, title, text), encoding="utf-8")
    except OSError as error:
        raise InvalidValue("plot", str(path), f"cannot be written: {error.strerror}") from error


def render_html(panels: Sequence[Panel], title: str, text: str) -> str:
    """A page that needs nothing from anywhere."""
    figures = "\n".join(f"<figure>{_svg(panel)}</figure>" for panel in panels)
    return _PAGE.format(title=html.escape(title), figures=figures, text=html.escape(text))


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(430px, 1fr)); gap: 1rem }}
figure {{ margin: 0 }}
</style>
<h1>{title}</h1>
<main>
{figures}
</main>
<pre>{text}</pre>
</html>
"""

_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 56, 30, 340, 190


def _distribution(name: str, values: list[float]) -> Panel:
    ordered = np.sort(np.asarray(values))
    share = np.arange(1, ordered.size + 1) / ordered.size
    keep = np.unique(np.linspace(0, ordered.size - 1, min(MAX_POINTS, ordered.size)).astype(np.int64))
    marks = [("median", float(np.median(ordered))), ("P99", float(np.percentile(ordered, 99)))]
    return Panel(METRICS[name], "ms", "share of values", ordered[keep].tolist(), share[keep].tolist(), marks)


def _svg(panel: Panel) -> str:
    right, bottom = _LEFT + _PLOT_WIDTH, _TOP + _PLOT_HEIGHT
    x_max, y_max = max([*panel.x, 1e-9]) * 1.02, max([*panel.y, 1e-9]) * 1.05

    def at(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + x / x_max * _PLOT_WIDTH, 1), round(bottom - y / y_max * _PLOT_HEIGHT, 1)

    line = " ".join(f"{px},{py}" for px, py in (at(x, y) for x, y in zip(panel.x, panel.y, strict=True)))
    parts = [
        f'<svg viewBox="0 0 430 260" role="img" aria-label="{html.escape(panel.title)}" font-size="11">',
        f'<text x="{_LEFT}" y="18" font-size="14">{html.escape(panel.title)}</text>',
    ]
    for step in range(5):
        x, y = x_max * step / 4, y_max * step / 4
        px, py = at(x, y)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{py}" y2="{py}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{py + 4}" text-anchor="end">{y:.3g}</text>')
        parts.append(f'<text x="{px}" y="{bottom + 14}" text-anchor="middle">{x:.3g}</text>')
    for label, x in panel.marks:
        px, _ = at(x, 0)
        parts.append(f'<line x1="{px}" x2="{px}" y1="{_TOP}" y2="{bottom}" stroke="#c60" stroke-dasharray="3 3"/>')
        anchor = "end" if px > right - 80 else "start"
        dx, y = (-4, _TOP + 22) if anchor == "end" else (4, _TOP + 10)
        parts.append(f'<text x="{px + dx}" y="{y}" text-anchor="{anchor}" fill="#c60">{label} {x:.4g}</text>')
    parts.append(f'<polyline fill="none" stroke="#06c" stroke-width="1.5" points="{line}"/>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{bottom + 30}" text-anchor="middle">{panel.x_label}</text>')
    middle = (_TOP + bottom) / 2
    parts.append(f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{panel.y_label}</text>')
    return "".join([*parts, "</svg>"])


def _import_matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InferplaneError(
            "a plot as PNG needs matplotlib, which is not installed",
            code="bench.no_matplotlib",
            remedy="pip install 'inferplane[bench]', or name a file that ends in .html",
        ) from error
    return Figure


def _write_png(path: Path, panels: Sequence[Panel], title: str) -> None:
    figure = _import_matplotlib()(figsize=(12, 3.4 * max(1, (len(panels) + 1) // 2)), layout="constrained")
    figure.suptitle(title)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot((len(panels) + 1) // 2, 2, index + 1)
        axes.plot(panel.x, panel.y)
        for label, x in panel.marks:
            axes.axvline(x, linestyle="--", color="tab:orange", label=f"{label} {x:.4g}")
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label, xlim=(0, None), ylim=(0, None))
        if panel.marks:
            axes.legend()
    figure.savefig(path, format="png", dpi=110)
