"""`certify`: compare a small network's file with the original, and say what can be said."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tamis import __version__
from tamis.artifact import Compressed, File, fingerprint, fingerprint_of_values
from tamis.certificates.certificate import Certificate
from tamis.certificates.claim import Case, Settings, checked_settings, short_form
from tamis.certificates.claims import kinds_of
from tamis.certificates.claims.boxes import check_boxes
from tamis.certificates.evidence import Evidence, Team, gather_evidence
from tamis.certificates.notes import notes_of
from tamis.certificates.rebuilt import load_beside
from tamis.certificates.requirements import asked_for, judge, refuse_without_classes, what_needs_labels
from tamis.certificates.samples import Inputs, as_tensor, first_of, name_of, said_of
from tamis.certificates.schema import VERSION, printable
from tamis.certificates.shares import share_out
from tamis.certificates.signature import private_key
from tamis.certificates.unseen import refuse_seen, refuse_training
from tamis.errors import AssumptionViolated, InvalidInput
from tamis.graph import Network, trace, without_autocast
from tamis.progress import Listener, reporting


@without_autocast()
def certify(
    original: Network | nn.Module,
    file: str | Path,
    inputs: Inputs,
    labels: Any = None,
    delta: float = 0.05,
    *,
    rebuilt: Network | nn.Module | None = None,
    training: Any = None,
    prior: Network | None = None,
    candidates: int = 1,
    coverage: float = 0.95,
    radius: float | None = None,
    boxed: int = 8,
    sequential: bool = False,
    max_accuracy_drop: float | str | None = None,
    max_disagreement: float | str | None = None,
    sign: str | Path | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
    called: str | None = None,
    data_called: str | None = None,
    command: str | None = None,
    just_initialised: bool = False,
    progress: Listener = False,
) -> Certificate:
    """Read a small network's file, and certify how it differs from the original.

    All claims hold together with probability at least 1 − δ over the draw of the data: those that may be wrong by
    chance share δ, `generalization` with a hundredth and the others equally, and each share is divided by the number of
    candidates.

    Args:
        original: the network before, or its module.
        file: the `.tamis` file of the network after. What counts is what is in it.
        inputs: held-out data, which neither network was made with: a tensor or array (a tuple of them for several
            inputs), a DataLoader, a dataset or its name ("cifar10:test"). The last three bring their labels.
        labels: the class number of each input, if it is known.
        delta: the probability that any of the claims may be wrong.
        rebuilt: the architecture of the file, a network or its module, where it is not that of the original: binarized,
            or of structured factors. Then claims that compare weight with weight are not made. The module of the
            original will do where `rebuilt_for` makes the architecture of it, and is taken where it is the original.
        training: what the networks were trained on, without augmentation, for the bound from the code length: data that
            brings its labels, or a pair of inputs and labels.
        prior: the network as it was known before any data, with seeded or analytic weights: what is still the same in
            the small network need not be described.
        candidates: how many small networks were tried on the same data, this one among them. It pays for choosing the
            best of networks that were made without that data, not for making new ones after a look at the result.
        coverage: for which part of all inputs to bound how far outputs move.
        radius: if given, bound how far outputs move for every input within this distance, in each entry, of one of the
            first `boxed` inputs.
        boxed: see `radius`.
        sequential: make what is claimed of held-out data hold however often one looks as samples come in: certify the
            first samples again and again, and stop whenever you like. Without it, one look is all there may be.
        max_accuracy_drop, max_disagreement: what is required: so much accuracy may be lost, so many answers may differ,
            as 0.01, "1%" or "1pt". `Certificate.passed` says whether the certified bounds, and not the rates that were
            measured, are as small; the certificate is issued either way.
        sign: a PEM file with an Ed25519 private key to sign the certificate with.
        example: an input to trace a module with; by default the first of the inputs.
        called, data_called: what the certificate calls the original and the data; by default the class of the module
            and the name of the dataset.
        command: what issued it, as one would type it again; the certificate repeats it.
        just_initialised: whether the weights of the original are random ones, which the certificate then notes.
        progress: True, False, or a function of a `Progress`.

    Raises:
        AssumptionViolated: held-out samples are among those of training, or among those that the file remembers to be
            made with.

    Returns:
        A `Certificate`; print it, `save` it, and let anybody `tamis.verify` it.

    Under `torchrun` the processes share the data out; each returns the same certificate.

    Example:
        >>> cert = tamis.certify(net, "small.tamis", "cifar10:test", delta=0.05)
        >>> cert["disagreement"].sentence
        >>> cert.save("small.json")
    """
    settings = checked_settings(delta, candidates, coverage, radius, boxed, sequential)
    required = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    asked = asked_for(**required)
    if sign is not None:
        private_key(sign)  # a key that cannot be read should be known before the work, not after it
    net = as_network(original, example, inputs, "certify")
    refuse_without_classes(net, **required)
    stored = read_once(file)
    small = load_beside(original, net, stored, rebuilt)
    if settings.radius is not None:
        if fingerprint(small.network) != fingerprint(net):
            raise InvalidInput(f"radius = {radius} bounds networks of one graph, and '{file}' has another one")
        check_boxes(net)
    _check_prior(prior, net, small)
    team = _team(net)
    said = {"called": said_of(inputs, "inputs", data_called), "needs_labels": what_needs_labels(max_accuracy_drop)}
    held_out, trained = _evidence(net, small.network, inputs, labels, training, settings, said, team, progress)
    check_unseen(held_out, trained, net, small, file)
    seen = data_facts(held_out)
    case = Case(net, small, settings, seen["largest_input"], held_out, trained, prior)
    claims = claims_of(case)
    content = {
        "certificate": VERSION,
        "made_by": f"tamis {__version__}",
        "date": datetime.date.today().isoformat(),
        "command": command and printable(command),
        "requirements": judge(asked, claims),
        "settings": vars(settings),
        "network": {
            "name": printable(called or _name_of_network(original, rebuilt)),
            "just_initialised": just_initialised,
            **network_facts(net),
        },
        "file": file_facts(stored),
        "data": {"name": printable(data_called or name_of(inputs)), **seen},
        "training": trained and {"name": printable(name_of(training)), **data_facts(trained)},
        "accuracy": accuracy_facts(held_out),
        "prior": None if prior is None else fingerprint_of_values(prior.params),
        "claims": claims,
    }
    return Certificate.issued({**content, "notes": notes_of(content)}, sign)


def check_unseen(
    held_out: Evidence, trained: Evidence | None, net: Network, small: Compressed, file: str | Path
) -> None:
    """Raise AssumptionViolated where held-out data was used to make either network, as far as that is known."""
    if trained is not None:
        refuse_training(held_out.digests, trained.digests)
    refuse_seen(held_out.digests, {f"'{Path(file).name}'": small.seen, "the original network": net.seen})


def _evidence(
    net: Network,
    small: Network,
    inputs: Inputs,
    labels: Any,
    training: Any,
    settings: Settings,
    said: Mapping[str, Any],
    team: Team | None,
    progress: Listener,
) -> tuple[Evidence, Evidence | None]:
    """What both networks do on the held-out data and on the training data, with a report of how far it is.

    `said` is what `gather_evidence` needs to say what is wrong with the held-out data.
    """
    total = _length(inputs) + _length(training[0] if isinstance(training, tuple) and training else training)
    leads = team is None or team.rank == 0
    with reporting(progress if leads and total else False, "certify", total) as report:
        keep = settings.boxed if settings.radius is not None else 1
        held_out = gather_evidence(net, small, inputs, labels, keep=keep, team=team, report=report, **said)
        done = held_out.given
        return held_out, training_evidence(net, small, training, team, lambda samples: report(done + samples))


def claims_of(case: Case) -> list[dict[str, Any]]:
    """Every claim that can be made, δ shared out among them."""
    kinds = [kind for kind in kinds_of(VERSION) if kind.available(case) and kind.applies(case)]
    shares = share_out(case.settings.delta, kinds, case.settings.candidates)
    measured = {kind.name: kind.measure(case, shares[kind.name]) for kind in kinds}
    return [kind.claim(measured[kind.name], case.settings, shares[kind.name]).as_json() for kind in kinds]


def training_evidence(
    net: Network,
    small: Network,
    training: Any,
    team: Team | None = None,
    report: Callable[[int], None] = lambda samples: None,
) -> Evidence | None:
    """What both networks do on the training data; None where there is none."""
    if training is None:
        return None
    pair = isinstance(training, tuple)
    if pair and len(training) != 2:
        raise InvalidInput(f"training must be data with labels, or a pair of inputs and labels; got {training!r:.80}")
    inputs, labels = training if pair else (training, None)
    called, why = said_of(inputs, "training"), "the bound from the code length"
    return gather_evidence(net, small, inputs, labels, called, team=team, report=report, needs_labels=why)


# -- facts -------------------------------------------------------------------------------------------------------------


def network_facts(net: Network) -> dict[str, Any]:
    """What says which network the original is."""
    size = sum(value.numel() * value.element_size() for value in net.params.values())
    return {"graph": fingerprint(net), "values": fingerprint_of_values(net.params), "bytes": size}


def read_once(file: str | Path) -> File:
    """The bytes of a file, which are then hashed and decoded."""
    if isinstance(file, Compressed):
        raise InvalidInput("what is certified is a file, read back: save the network, and give the path of its file")
    return File.read(file)


def file_facts(file: File) -> dict[str, Any]:
    """What says which file it is."""
    return {"name": printable(file.path.name), "sha256": file.sha256, "bytes": file.nbytes}


def data_facts(evidence: Evidence) -> dict[str, Any]:
    """What says which data it is, and how large its entries are, rounded up to what has few digits."""
    return {
        "samples": evidence.samples,
        "given": evidence.given,
        "inputs": evidence.inputs,
        "labels": evidence.labels,
        "largest_input": max(evidence.largest_input, short_form(evidence.largest_input)),
    }


def accuracy_facts(evidence: Evidence) -> dict[str, float] | None:
    """Which part of the held-out data each network gets right, and who always says the same; None without labels."""
    if evidence.known is None:
        return None
    (before, _), (after, _) = evidence.right(0), evidence.right(1)
    right = {"before": before, "after": after, "guessing": evidence.most_frequent()}
    return {name: count / evidence.given for name, count in right.items()}


def _name_of_network(original: Network | nn.Module, rebuilt: Network | nn.Module | None) -> str:
    """The class of the module, where there is one; a graph alone is called by its size."""
    module = original if isinstance(original, nn.Module) else rebuilt
    return type(module).__name__ if isinstance(module, nn.Module) else repr(original)


# -- arguments ---------------------------------------------------------------------------------------------------------


def as_network(original: Network | nn.Module, example: Any, inputs: Inputs, call: str) -> Network:
    """The original as a network; a module is traced with the example, or else with the first of the inputs."""
    if isinstance(original, Network):
        return original
    if not isinstance(original, nn.Module):
        raise InvalidInput(f"{call} needs the original network or module, got {type(original).__name__}")
    example = first_of(inputs) if example is None else example
    if example is None:
        raise InvalidInput(f"{call} needs an example of the input of {type(original).__name__}: pass example=")
    taken = next((value for value in original.parameters() if value.is_floating_point()), torch.zeros(()))
    each = [as_tensor(value, "example") for value in (example if isinstance(example, tuple) else (example,))]
    return trace(original, tuple(v.to(taken.device, taken.dtype if v.is_floating_point() else v.dtype) for v in each))


def check_prior_kind(prior: Any) -> None:
    """Raise InvalidInput for a prior that is no network."""
    if not (prior is None or isinstance(prior, Network)):
        raise InvalidInput(f"prior must be a Network, as tamis.trace gives it, got {type(prior).__name__}")


def _check_prior(prior: Network | None, net: Network, small: Compressed) -> None:
    check_prior_kind(prior)
    if prior is None:
        return
    known = fingerprint_of_values(prior.params)
    for name, params in (("original", net.params), ("small", small.params)):
        if known == fingerprint_of_values(params):
            raise AssumptionViolated(f"the prior is the {name} network itself: it must not depend on any data")


def _length(inputs: Any) -> int:
    """How many samples there are, where it is known in advance."""
    if isinstance(inputs, tuple):
        return _length(inputs[0]) if inputs else 0
    if isinstance(inputs, (Tensor, np.ndarray)):
        return int(inputs.shape[0]) if inputs.ndim else 0
    return len(inputs) if hasattr(inputs, "batch") and hasattr(inputs, "labels") else 0


def _team(net: Network) -> Team | None:
    """The processes that share the work, where torchrun started several."""
    if "WORLD_SIZE" not in os.environ and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from tamis.training import join_team  # whoever verifies does it alone

    # Every process has its networks where the user put them; the type says how they talk.
    return join_team(torch.device(net.device.type))
