"""The step kronecker replaces dense layers by products of sparse factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tamis.recipes.steps.base import BINARY, QUANTIZED, Step, key
from tamis.settings import Factorization

if TYPE_CHECKING:
    from torch import nn

    from tamis.recipes.state import Context, State

PRUNED = "which entries are pruned would be lost in the factors"


class Kronecker(Step):
    """This step runs `tamis.kronecker.replace` with the first patterns of `tamis.kronecker.suggest` for each layer."""

    not_after: ClassVar[Mapping[str, str]] = {
        "prune": PRUNED,
        "l1inf": PRUNED,
        "search": PRUNED,
        "quantize": QUANTIZED,
        "binarize": BINARY,
        "kronecker": "the layers have factors already",
    }
    renews: ClassVar[bool] = True

    step: Literal["kronecker"]
    density: float = Field(0.25, gt=0, le=1, description="The most weights of a layer's factors, as a part of its own.")
    smallest: int = Field(1024, ge=1, description="Layers of fewer weights stay dense.")
    factors: int = Field(2, ge=2, le=8, description="How many factors at most.")
    target: Literal["time", "energy"] = Field("time", description="What the patterns are chosen for.")
    # Other than in the call, which raises where patterns fit no layer of a size: here such a layer stays as it is.
    convolutions: bool = key(Factorization, "convolutions", default=True)
    keep: list[str] = key(Factorization, "keep")
    begin: Literal["factorized", "scratch"] = key(Factorization, "begin")
    refine: int = key(Factorization, "refine", ge=0)
    seed: int = key(Factorization, "seed", ge=0)

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.artifact import Compressed
        from tamis.graph import trace
        from tamis.kronecker import patterns_of

        # Traced anew: factors are other operations than the layers that they stand for.
        module = self._replace_layers(state.trainable(), self.begin, context.progress).eval()
        network = trace(module, context.data.train.example)
        step = {"step": self.step, "layers": patterns_of(module), **self.chosen_settings()}
        small = Compressed(network, recipe=[*state.small.recipe, step])
        return replace(state.with_new_reference(small), module=module)

    def _replace_layers(self, module: nn.Module, begin: str, progress: Any = False) -> nn.Module:
        from tamis.errors import InvalidInput
        from tamis.kronecker import replace, suggest

        def choose_patterns(rows: int, columns: int) -> Any:
            if rows * columns < self.smallest:
                return None
            try:
                return suggest(rows, columns, float(self.density), self.target, self.factors)[0].patterns
            except InvalidInput:  # no product is small enough: such a layer stays as it is
                return None

        return replace(module, choose_patterns, self.keep, begin, self.convolutions, self.refine, self.seed, progress)
