"""`certify` compares a small network's file with the original, and states what holds of the two."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tamis import __version__
from tamis.artifact import Compressed, File, fingerprint, fingerprint_of_values
from tamis.certificates.signing import sign_digest
from tamis.errors import AssumptionViolated, InvalidInput
from tamis.graph import Network, without_autocast
from tamis.progress import Listener, reporting
from tamis.settings import Certification, documents
from tamis.verification import (
    VERSION,
    Case,
    Certificate,
    Evidence,
    Inputs,
    Samples,
    Settings,
    Team,
    accuracy_facts,
    as_network,
    check_boxes,
    check_prior_kind,
    check_unseen,
    data_facts,
    file_facts,
    gather_evidence,
    gather_training_evidence,
    judge,
    kinds_of,
    load_small,
    make_settings,
    name_of,
    network_facts,
    notes_of,
    open_file,
    printable,
    quote_name,
    read_private_key,
    recognition_note,
    refuse_without_classes,
    required_bounds,
    requirement_of_labels,
    share_out,
)


@without_autocast()
@documents(Certification)
def certify(
    original: Network | nn.Module,
    file: str | Path | File,
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
        file: the `.tamis` file of the network after, or what `artifact.File.read` read of it. What counts is what is
            in it.
        inputs: held-out data, which neither network was made with: a tensor or array (a tuple of them for several
            inputs), a DataLoader, a dataset or its name ("cifar10:test"). The last three bring their labels.
        labels: the class number of each input, if it is known.
        <settings>
        rebuilt: the module that `tamis.load` reads the file for, where the original is a traced network and layers of
            the file were rebuilt: made binary, or products of factors. Not needed where the original is a module. Of
            rebuilt layers, claims that compare weight with weight are not made.
        training: what the networks were trained on, without augmentation, for the bound from the code length: data that
            brings its labels, or a pair of inputs and labels.
        prior: the network as it was known before any data, with seeded or analytic weights: what is still the same in
            the small network need not be described.
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
        >>> net = tamis.trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(1, 1, 8, 8))
        >>> tamis.prune(net, 0.5).save("small.tamis")
        >>> cert = tamis.certify(net, "small.tamis", "digits:test", delta=0.05)
        >>> print(cert["disagreement"].sentence)
        With 95% confidence, on inputs drawn like these, the small network answers differently from the original on at
        most 20.03% of them (here it does on 55 of 360).
        >>> cert.save("small.json")
    """
    settings = make_settings(delta, candidates, coverage, radius, boxed, sequential)
    required = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    asked = required_bounds(**required)
    if sign is not None:
        read_private_key(sign)  # a key that cannot be read should be known before the work, not after it
    net = as_network(original, example, inputs, "certify")
    refuse_without_classes(net, **required)
    stored = open_file(file)
    small = load_small(stored, net, original, rebuilt)
    if settings.radius is not None:
        if fingerprint(small.network) != fingerprint(net):
            raise InvalidInput(f"radius = {radius} bounds networks of one graph, and '{file}' has another one")
        check_boxes(net)
    _check_prior(prior, net, small)
    said = quote_name(inputs, "inputs", data_called)
    samples = Samples(inputs, labels, said, requirement_of_labels(max_accuracy_drop))
    held_out, trained = _gather_evidence(net, small.network, samples, training, settings, progress)
    check_unseen(held_out, trained, net, small, stored.path)
    seen = data_facts(held_out)
    case = Case(net, small, settings, seen["largest_input"], held_out, trained, prior)
    claims = _make_claims(case)
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
    notes = [*notes_of(content), *filter(None, [recognition_note(small, seen["samples"])])]
    return _issue({**content, "notes": notes}, sign)


def _issue(content: Mapping[str, Any], sign: str | Path | None) -> Certificate:
    """Make a certificate of its content, with its digest and, if there is a key, a signature."""
    certificate = Certificate.with_digest(content)
    if sign is None:
        return certificate
    whole = certificate.content
    return Certificate({**whole, "signature": sign_digest(whole["digest"], sign)})


def _gather_evidence(
    net: Network, small: Network, samples: Samples, training: Any, settings: Settings, progress: Listener
) -> tuple[Evidence, Evidence | None]:
    """Run both networks on the held-out samples and on the training data, with a report of how far it is."""
    team = _join_team(net)
    total = _count_samples(samples.inputs) + _count_samples(
        training[0] if isinstance(training, tuple) and training else training
    )
    leads = team is None or team.rank == 0
    with reporting(progress if leads and total else False, "certify", total) as report:
        keep = settings.boxed if settings.radius is not None else 1
        held_out = gather_evidence(net, small, samples, keep, team, report)
        done = held_out.given
        return held_out, gather_training_evidence(net, small, training, team, lambda samples: report(done + samples))


def _make_claims(case: Case) -> list[dict[str, Any]]:
    """Make every claim that can be made, with δ shared out among them."""
    kinds = [kind for kind in kinds_of(VERSION) if kind.is_available(case) and kind.applies(case)]
    shares = share_out(case.settings.delta, kinds, case.settings.candidates)
    measured = {kind.name: kind.measure(case, shares[kind.name]) for kind in kinds}
    return [kind.claim(measured[kind.name], case.settings, shares[kind.name]).as_json() for kind in kinds]


def _name_of_network(original: Network | nn.Module, rebuilt: Network | nn.Module | None) -> str:
    """Return the class of the module, where there is one; a graph alone is called by its size."""
    module = original if isinstance(original, nn.Module) else rebuilt
    return type(module).__name__ if isinstance(module, nn.Module) else repr(original)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _check_prior(prior: Network | None, net: Network, small: Compressed) -> None:
    check_prior_kind(prior)
    if prior is None:
        return
    known = fingerprint_of_values(prior.params)
    for name, params in (("original", net.params), ("small", small.params)):
        if known == fingerprint_of_values(params):
            raise AssumptionViolated(f"the prior is the {name} network itself: it must not depend on any data")


def _count_samples(inputs: Any) -> int:
    """Return how many samples there are, where it is known in advance; otherwise 0."""
    if isinstance(inputs, tuple):
        return _count_samples(inputs[0]) if inputs else 0
    if isinstance(inputs, (Tensor, np.ndarray)):
        return int(inputs.shape[0]) if inputs.ndim else 0
    return len(inputs) if hasattr(inputs, "batch") and hasattr(inputs, "labels") else 0


def _join_team(net: Network) -> Team | None:
    """Join the processes that share the work, where torchrun started several."""
    if "WORLD_SIZE" not in os.environ and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from tamis.training import join_team  # only where there are several processes

    # Every process has its networks where the user put them; the type says how they talk.
    return join_team(torch.device(net.device.type))
