"""The numbers that dashboards query; knows neither HTTP nor where the numbers come from."""

from inferplane.metrics.measured import CONTENT_TYPE, Metrics
from inferplane.metrics.timer import RequestTimes, SequenceTimer

__all__ = ["CONTENT_TYPE", "Metrics", "RequestTimes", "SequenceTimer"]
