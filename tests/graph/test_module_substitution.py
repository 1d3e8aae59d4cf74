"""Modules in the place of others."""

from __future__ import annotations

from torch import nn

from tamis.graph.module_substitution import substitute_modules


def test_every_name_of_a_shared_module_leads_to_the_new_one() -> None:
    shared, new = nn.ReLU(), nn.Identity()
    model = nn.Sequential(shared, nn.Sequential(nn.Linear(1, 1), shared))
    assert substitute_modules(model, {shared: new}) is model
    assert model[0] is new and model[1][1] is new
    assert isinstance(model[1][0], nn.Linear)


def test_the_model_itself_may_give_way() -> None:
    model, new = nn.ReLU(), nn.Identity()
    assert substitute_modules(model, {model: new}) is new
    assert substitute_modules(model, {}) is model
