"""The user vouches for what no count on held-out samples can tell, in one wording for every statement."""

from __future__ import annotations

DRAWN = "the samples are independent draws from the distribution that the statement is meant for"
UNSEEN = "no network in question was trained, compressed or chosen with the help of these samples"
HELD_OUT = (DRAWN, UNSEEN)
