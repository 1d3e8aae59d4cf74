"""Gradient projection descent follows each step of any optimizer by the projection onto ‖T_l‖_{1,∞} ≤ c."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tamis.errors import InvalidInput, TrainingDiverged
from tamis.graph import Patterns
from tamis.l1inf.layers import Layer, find_hidden_layers, find_named_layers
from tamis.l1inf.projection import check_radius, contains_nonfinite, project_

Radius = float | Mapping[str, float] | Callable[[int], float]
OWN_STATE = "l1inf"  # what a state_dict has beside that of the wrapped optimizer


class L1Inf(Optimizer):
    """This optimizer keeps every hidden neuron's incoming weights, with the bias, within ‖v‖₁ ≤ c (Algorithm 1).

    It is used like the optimizer that it wraps, whose parameter groups and state are its own: with closures, learning
    rate schedulers, and `torch.amp.GradScaler`, which leaves out a step, and with it the projection, where gradients
    are not finite. Weights outside the ball before the first step stay there until it; `project()` brings them in at
    once. Processes that train together project the same weights to the same bits, without a word between them.
    Batch normalization is no part of a column: its scales are free.

    Args:
        optimizer: any, over any of the model's parameters.
        model: whose layers are constrained; one wrapped for distributed training as well.
        c: the largest ℓ1-norm of a column: a number; a number for each of some layers by name, the others being free;
            or a function that is called after each step with the number of steps by then, 1 after the first.
        exclude: names or patterns of layers that are free. By default the last linear or convolutional layer in the
            order in which the model registered them, which is taken for the output: the text leaves it free. With a
            dict of c, nothing: it says what is constrained.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> optimizer = L1Inf(torch.optim.Adam(model.parameters()), model, c=0.1)
        >>> optimizer.zero_grad()
        >>> model(torch.randn(5, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> round(tamis.l1inf.statistics(model).c, 6)
        0.1

    Reference: yang2021l1inf.
    """

    optimizer: Optimizer
    layers: list[Layer]
    c: float | dict[str, float] | Callable[[int], float]
    steps: int

    def __init__(self, optimizer: Optimizer, model: nn.Module, c: Radius, exclude: Patterns = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InvalidInput(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        if isinstance(c, Mapping):
            if exclude is not None:
                raise InvalidInput(f"c says which layers are constrained, {', '.join(c)}: leave out {exclude=}")
            c = {name: check_radius(radius, f"c of '{name}'") for name, radius in c.items()}
            layers = find_named_layers(model, c)
        else:
            c = c if callable(c) else check_radius(c)
            layers = find_hidden_layers(model, exclude)
        # Not Optimizer.__init__, which makes parameter groups and state: they are those of the wrapped one. What makes
        # an optimizer of an unpickled one, hooks and profiling, is all that is left to do.
        self.__setstate__({"optimizer": optimizer, "layers": layers, "c": c, "steps": 0})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of the wrapped optimizer, then project; return what the optimizer returns."""
        loss = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        # Before the projection: a schedule of c is asked for the number of steps that have been taken.
        self.steps += 1
        self.project()
        return loss

    def project(self) -> None:
        """Project every constrained layer onto the ball of the current c."""
        radii = self.radii().values()
        pending: list[Tensor] = []
        for layer, radius in zip(self.layers, radii, strict=True):
            self._project(layer, radius, pending)
        if contains_nonfinite(pending):  # nothing that is projected moves again: this finds the layer, and refuses it
            for layer, radius in zip(self.layers, radii, strict=True):
                self._project(layer, radius)

    def radii(self) -> dict[str, float]:
        """Return the current c of each constrained layer, by name."""
        if isinstance(self.c, Mapping):
            return dict(self.c)
        name = f"c({self.steps})" if callable(self.c) else "c"
        radius = check_radius(self.c(self.steps) if callable(self.c) else self.c, name)
        return dict.fromkeys((layer.name for layer in self.layers), radius)

    def _project(self, layer: Layer, radius: float, pending: list[Tensor] | None = None) -> None:
        weight, bias, transposed, groups = layer.weight, layer.bias, layer.transposed, layer.groups
        try:
            project_(weight, radius, bias, transposed=transposed, groups=groups, pending=pending)
        except InvalidInput as error:
            # Finite weights that are refused are the user's mistake, such as a dtype; others say that training has
            # diverged.
            if bool(layer.column_norms().isfinite().all()):
                raise InvalidInput(f"layer '{layer.name}': {error}") from error
            raise TrainingDiverged(f"after step {self.steps}, layer '{layer.name}': {error}") from error

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, with the number of steps that a schedule of c needs."""
        return {**self.optimizer.state_dict(), OWN_STATE: {"steps": self.steps}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if OWN_STATE not in state_dict:
            raise InvalidInput(
                f"this state, with {', '.join(state_dict)}, was not saved by L1Inf: load it into the wrapped optimizer "
                "before wrapping it"
            )
        self.optimizer.load_state_dict({name: value for name, value in state_dict.items() if name != OWN_STATE})
        self.steps = int(state_dict[OWN_STATE]["steps"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("optimizer", "layers", "c", "steps")}

    def __repr__(self) -> str:
        return f"L1Inf({self.optimizer!r}, layers={[layer.name for layer in self.layers]}, c={self.c!r})"
