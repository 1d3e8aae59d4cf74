"""What people look at rather than read: `tamis.report(certificate, "report.html")`, and figures."""

from __future__ import annotations

from tamis.report.page import report
from tamis.rooms import make_callable

make_callable(__name__, report)
