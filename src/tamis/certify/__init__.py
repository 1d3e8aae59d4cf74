"""Certificates: `tamis.certify(net, "small.tamis", inputs)` and what it is made of, one kind of claim a file."""

from tamis.certify.issue import certify
from tamis.rooms import make_callable

make_callable(__name__, certify)
