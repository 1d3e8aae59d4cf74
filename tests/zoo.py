"""The models of the zoo, each traced once for all tests: that takes longer than most of what is checked of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from pretrained import pretrained
from torch import nn

import tamis
from tamis.training.models import MODELS, example_input


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that tracing could disturb."""
    return {
        "training": [m.training for m in model.modules()],
        "attributes": [{k: id(v) for k, v in m.__dict__.items()} for m in model.modules()],
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()],
        "places": {n: (id(p), p.data_ptr(), p.requires_grad) for n, p in model.named_parameters()},
        "values": {n: v.clone() for n, v in model.state_dict().items()},
    }


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    after = snapshot(model)
    for what in ("training", "attributes", "hooks", "places"):
        assert after[what] == before[what], what
    assert all(torch.equal(after["values"][n], v) for n, v in before["values"].items())


@cache
def traced_from_the_zoo(name: str) -> tuple[nn.Module, dict[str, Any], tamis.Network]:
    """A fresh model in training mode, what it was before tracing, and its network."""
    torch.manual_seed(0)
    model = MODELS[name]().train()
    before = snapshot(model)
    return model, before, tamis.trace(model, example_input(name, 1))


@cache
def traced_pretrained(name: str) -> tamis.Network:
    return tamis.trace(pretrained(name), torch.zeros(1, 3, 32, 32))
