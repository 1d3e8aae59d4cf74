"""These rules say which steps may follow which."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tamis.recipes.steps.base import Step
from tamis.recipes.yaml_document import Document, KeyPath, format_path


def check_order(chain: Sequence[tuple[KeyPath, Step]], document: Document) -> None:
    """Raise RecipeError at the first step that cannot come where it stands.

    Args:
        chain: the steps in their order, each with the keys that lead to it; the budget last, where there is one.
        document: for the place in the message.
    """
    for place, (path, step) in enumerate(chain):
        # Backwards, so that of several steps of one kind the first is the one that stays in the mapping.
        before = {each.step: where for where, each in reversed(chain[:place])}
        for earlier, reason in step.not_after.items():
            if earlier in before:
                raise document.error(
                    path, f"{step.step} cannot come after {earlier} ({format_path(before[earlier])}): {reason}"
                )
        if step.only_after and not set(step.only_after) & set(before):
            raise document.error(path, f"{step.step} needs one of these before it: {', '.join(step.only_after)}")
        # Anywhere later in the chain, and not at once: steps in between may be useful.
        if step.followed_by is not None and step.followed_by[0] not in [each.step for _, each in chain[place + 1 :]]:
            kind, reason = step.followed_by
            raise document.error(path, f"{step.step} needs a {kind} step after it: {reason}")
        _check_obs(step, before, path, document)


# By its setting and not by its kind: other ways of pruning leave the weights that they keep as they are.
def _check_obs(step: Step, before: Collection[str], path: KeyPath, document: Document) -> None:
    if getattr(step, "by", None) == "obs" and "quantize" in before:
        raise document.error(
            path, "prune by obs cannot come after quantize: it moves the weights it keeps, which would leave the levels"
        )
