"""Masks say which entries of the parameters are kept, and hold the others at zero, in training as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tamis.errors import InvalidInput, InvalidParameters, join_names


class Masks(Mapping[str, Tensor]):
    """A boolean tensor for each masked parameter, by name: True where an entry is kept, False where it is pruned.

    The tensors are those that it was given, not copies.

    Example:
        >>> masks = Masks({"fc.weight": torch.tensor([[True, False], [False, False]])})
        >>> masks.pruned, masks.sparsity
        (3, 0.75)
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        for name, mask in masks.items():
            if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
                kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise InvalidInput(f"the mask of '{name}' must be a boolean tensor (True: kept), got {kind}")
        self._masks = dict(masks)

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __repr__(self) -> str:
        return f"Masks({self.pruned:,} of {self.total:,} weights pruned, {len(self)} parameters)"

    @property
    def total(self) -> int:
        """Return the number of entries that have a mask."""
        return sum(mask.numel() for mask in self.values())

    @property
    def pruned(self) -> int:
        """Return the number of pruned entries."""
        return self.total - sum(int(mask.count_nonzero()) for mask in self.values())

    @property
    def sparsity(self) -> float:
        """Return the fraction of entries that is pruned."""
        return self.pruned / self.total if self.total else 0.0

    def __and__(self, other: Mapping[str, Tensor]) -> Masks:
        """Keep what both masks keep; a parameter that only one of them masks is masked as that one says."""
        shared = {name: tuple(mask.shape) for name, mask in other.items() if name in self}
        Masks({name: self[name] for name in shared})._check(shared, "the other")
        both = {name: self[name] & other[name] if name in other else self[name] for name in self}
        return Masks({**both, **{name: mask for name, mask in other.items() if name not in self}})

    def zeroed(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy a state_dict with pruned entries set to zero; tensors without a mask are passed on as they are.

        It goes by name: of tied parameters, only the one that is masked. `Compressed.state_dict` knows them all.
        """
        self._check({name: tuple(value.shape) for name, value in state.items()}, "the state_dict")
        return {
            name: value.where(self[name].to(value.device), 0) if name in self else value
            for name, value in state.items()
        }

    def check_zeros(self, state: Mapping[str, Tensor]) -> None:
        """Raise InvalidParameters where a state_dict is not exactly +0.0 although it is pruned."""
        self._check({name: tuple(value.shape) for name, value in state.items()}, "the network")
        for name, mask in self.items():
            # −0.0 equals 0 but has other bits, and a file stores pruned entries as +0.0.
            wrong = (state[name] != 0) | state[name].signbit()
            if (wrong & ~mask.to(wrong.device)).any():
                raise InvalidParameters(
                    f"the mask of '{name}' prunes entries that are not +0.0; Masks.zeroed sets them to zero"
                )

    def hold(self, model: nn.Module, optimizer: Optimizer) -> Hold:
        """Keep what is pruned at exactly zero from now on, through every step of an optimizer.

        Weights are set to zero at once. From then on their gradients are zero, before DDP sums them up and before
        anyone clips them, and each step is followed by setting them to zero again: an optimizer whose momentum dates
        from before cannot revive them.

        Args:
            model: the module that is trained, as it is or wrapped for DDP or by torch.compile, on any device.
            optimizer: any `torch.optim.Optimizer` that trains it.

        Returns:
            A `Hold`, whose `release()` ends the constraint.

        Example:
            >>> model = nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
            >>> hold = Masks({"weight": torch.tensor([[True, False]])}).hold(model, optimizer)
            >>> model(torch.ones(1, 2)).sum().backward()
            >>> optimizer.step()  # moves the weights that are left
            >>> (model.weight != 0).tolist()
            [[True, False]]
        """
        if not hasattr(optimizer, "register_step_post_hook"):
            raise InvalidInput(f"hold needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
        params = named_parameters(model)
        self._check({name: tuple(param.shape) for name, param in params.items()}, type(model).__name__)
        trained = {id(param) for group in optimizer.param_groups for param in group["params"]}
        strangers = [name for name in self if params[name].requires_grad and id(params[name]) not in trained]
        if strangers:
            raise InvalidInput(
                f"the {type(optimizer).__name__} does not train {join_names(strangers)} of {type(model).__name__}: "
                "make it from this model's parameters; with several optimizers, hold the masks of each one's parameters"
            )
        held: dict[Tensor, Tensor] = {}
        for name, mask in self.items():  # tied parameters can have a mask under each of their names
            held[params[name]] = held[params[name]] & mask if params[name] in held else mask
        return Hold(held, optimizer)

    def _check(self, shapes: Mapping[str, tuple[int, ...]], owner: str) -> None:
        for name, mask in self.items():
            if name not in shapes:
                raise InvalidParameters(
                    f"there is a mask for '{name}', but {owner} has no such parameter; it has {join_names(shapes)}"
                )
            if tuple(mask.shape) != shapes[name]:
                raise InvalidParameters(
                    f"the mask of '{name}' has shape {tuple(mask.shape)}, the parameter {shapes[name]}"
                )


class Hold:
    """The constraint that `Masks.hold` puts on a model; `release()` ends it."""

    def __init__(self, masks: Mapping[Tensor, Tensor], optimizer: Optimizer) -> None:
        self._pruned = {param: ~mask for param, mask in masks.items()}
        self._hooks: list[Any] = [optimizer.register_step_post_hook(lambda *_: self._zero())]
        self._hooks += [
            param.register_hook(self._mask_gradient(param)) for param in self._pruned if param.requires_grad
        ]
        self._zero()

    def release(self) -> None:
        """Let the weights go: they are still zero, and may change from now on."""
        for hook in self._hooks:
            hook.remove()

    def _mask_gradient(self, param: Tensor) -> Any:
        return lambda gradient: gradient.masked_fill(self._find_pruned(param), 0)

    @torch.no_grad()
    def _zero(self) -> None:
        for param in self._pruned:
            param.masked_fill_(self._find_pruned(param), 0)
            if param.grad is not None:  # one from before, or one that was computed without hooks
                param.grad.masked_fill_(self._find_pruned(param), 0)

    def _find_pruned(self, param: Tensor) -> Tensor:
        """Return the pruned entries of a parameter as a mask, on the device where the parameter is now."""
        if self._pruned[param].device != param.device:
            self._pruned[param] = self._pruned[param].to(param.device)
        return self._pruned[param]


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters by the names of the module inside DDP or torch.compile, tied ones under each of their names."""
    # By type: a user's own module may have one child that is called "module".
    while isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) or hasattr(model, "_orig_mod"):
        model = next(model.children())
    return dict(model.named_parameters(remove_duplicate=False))
