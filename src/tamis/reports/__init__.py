"""What people look at rather than read: `tamis.report(certificate, "report.html")`, and figures."""

from __future__ import annotations

from tamis.reports.comparison import latencies as latencies
from tamis.reports.figures import line_panels as line_panels
from tamis.reports.online_panels import online_panels as online_panels
from tamis.reports.page import Candidate as Candidate
from tamis.reports.page import report

__all__ = [
    "Candidate",
    "latencies",
    "line_panels",
    "online_panels",
    "report",
]
