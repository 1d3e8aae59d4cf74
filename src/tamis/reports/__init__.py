"""Reports and figures show people what a certificate says: `tamis.report(certificate, "report.html")`."""

from __future__ import annotations

from tamis.reports.comparison import latencies as latencies
from tamis.reports.figures import line_panels as line_panels
from tamis.reports.online_panels import online_panels as online_panels
from tamis.reports.page import Candidate as Candidate
from tamis.reports.page import report as report
from tamis.reports.pareto import on_pareto_front as on_pareto_front

__all__ = [
    "Candidate",
    "latencies",
    "line_panels",
    "on_pareto_front",
    "online_panels",
    "report",
]
