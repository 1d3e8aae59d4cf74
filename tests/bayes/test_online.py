"""The online learner: draws, updates, states, and what it refuses."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from bayes.toys import Lines, enumerated

from tamis.bayes.networks import Conv1d, Conv2d, Dense, Graph, Nodes
from tamis.bayes.online import OnlineLearner, tune
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.space import Space
from tamis.bayes.target import Rounds
from tamis.bayes.xnor import Xnor
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.training.digits import digits

Stream = list[tuple[torch.Tensor, torch.Tensor]]


def stream(shape: tuple[int, ...], count: int, batch: int = 4, seed: int = 0) -> Stream:
    """Labels say whether inputs sum to more than 0."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(batch, *shape, generator=generator) for _ in range(count)]
    return [(x, (x.flatten(1).sum(1) > 0).long()) for x in inputs]


def learner(space: Space | None = None, lam: float = 1.5, particles: int = 40, seed: int = 0) -> OnlineLearner:
    space = space or Dense((3,), 2, [1, 2], [2, 3])
    return OnlineLearner(space, Prior(0.3, 3.0), lam, particles, seed, sampling=Sampling(threshold=0.95, sweeps=1))


def same(one: object, two: object) -> bool:
    """Whether two states are the same to the last bit."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(same(*pair) for pair in zip(one, two, strict=True))
    return one == two


def test_it_learns() -> None:
    told = learner(Dense((3,), 2, [1], [2]), lam=1.0, particles=100)
    rounds = stream((3,), 60)
    for x, y in rounds:
        told.update(x, y)
    fresh = stream((3,), 50, seed=9)
    right = [float((told.predict_mean(x).argmax(1) == y).double().mean()) for x, y in fresh]
    assert sum(right) / len(right) > 0.85
    averaged = [float((told.average().predict(x).argmax(1) == y).double().mean()) for x, y in fresh]
    assert sum(averaged) / len(averaged) > 0.75
    assert told.regret.expected_loss < told.regret.uniform_loss
    assert told.posterior.resampled > 0


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (Conv1d((1, 6), 2, [1, 2], [2], [2, 3]), (1, 6)),
        (Conv2d((1, 4, 4), 2, [2, 3], [1, 2], [2]), (1, 4, 4)),
        (Xnor((3,), 2, [3, 4], [2, 3]), (3,)),
        (Xnor((1, 4, 4), 2, [3], [2], [1, 2]), (1, 4, 4)),
    ],
    ids=["conv1d", "conv2d", "xnor dense", "xnor conv2d"],
)
def test_every_space_is_learnt_in(space: Space, shape: tuple[int, ...]) -> None:
    told = learner(space, lam=3.0, particles=20)
    for x, y in stream(shape, 4):
        assert torch.allclose(told.predict(x).sum(1), torch.ones(4, dtype=torch.float64))
        told.update(x, y)
    assert told.rounds == 4 and told.posterior.resampled > 0
    assert math.isclose(sum(told.posterior.probabilities().values()), 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize(
    ("space", "lam"),
    [(Conv2d((1, 4, 4), 2, [1, 2], [1, 2], [2]), 2.0), (Xnor((1, 4, 4), 2, [3, 4], [2], [1]), 20.0)],
    ids=["conv2d", "xnor"],
)
def test_a_gpu_learns_as_a_processor_does(space: Space, lam: float) -> None:
    """The same draws, and sums that differ by rounding: the same run, until a decision falls the other way."""
    runs = []
    for device in ("cpu", "cuda"):
        told = OnlineLearner(space, Prior(0.3, 3.0), lam, 20, 0, sampling=Sampling(threshold=0.8), device=device)
        for x, y in stream((1, 4, 4), 4):
            told.update(x, y)
        best = told.regret.best_particle()
        runs.append([*told.regret.expected_losses, best.loss, float(told.average().predict(x)[0, 0])])
        assert told.posterior.resampled > 0
        told.load_state_dict(told.state_dict())
        told.update(x, y)
    assert runs[0] == pytest.approx(runs[1], rel=1e-6)


def ring(features: torch.Tensor, itself: float = 1.0) -> Graph:
    """Six nodes, each beside two others, and beside itself with a weight."""
    edges = torch.roll(torch.eye(6), 1, 0) + torch.roll(torch.eye(6), -1, 0) + itself * torch.eye(6)
    return Graph(Nodes(edges, features), 2, [1, 2], [2])


def test_nodes_of_a_graph() -> None:
    told = learner(ring(torch.eye(6)), lam=3.0, particles=20)
    for node in (0, 3, 1, 4, 2, 5):
        told.update(torch.tensor([node]), torch.tensor([int(node > 2)]))
    assert told.predict_mean(torch.arange(6)).shape == (6, 2)


def test_the_learner_is_algorithm_1() -> None:
    """Weights of particles that were never resampled are exp(−λ h_t), with the losses of what was drawn."""
    space = Lines([1, 2], SIGN)
    told = OnlineLearner(space, Prior(0.3), 0.05, 3000, 0)
    rounds = stream((2,), 6)
    for x, y in rounds:
        told.update(x, y)
    assert told.posterior.resampled == 0
    seen = Rounds([x.double() for x, _ in rounds], [y for _, y in rounds], list(told.regret.losses))
    masses, log_normaliser = enumerated(space, seen, 0.05)
    shares = list(told.posterior.probabilities().values())
    assert all(abs(share - mass.sum()) < 0.03 for share, mass in zip(shares, masses, strict=True))
    assert abs(told.posterior.log_normaliser - log_normaliser) < 0.01


def test_losses_are_those_of_what_was_drawn() -> None:
    told, drawn, expected = learner(), [], []
    for x, y in stream((3,), 5):
        drawn.append(float(-told.predict(x)[torch.arange(4), y].log().mean()))
        expected.append(float(-told.predict_mean(x)[torch.arange(4), y].log().mean()))
        told.update(x, y)
    assert told.regret.losses == pytest.approx(drawn)
    assert all(mean <= loss + 1e-12 for mean, loss in zip(expected, told.regret.expected_losses, strict=True))  # Jensen


def test_moves_by_some_rounds_learn_and_go_on_from_a_state() -> None:
    def made() -> OnlineLearner:
        sampling = Sampling(threshold=0.9, sweeps=2, leapfrog=2, subsample=6)
        return OnlineLearner(Dense((3,), 2, [1, 2], [2]), Prior(0.3, 3.0), 1.0, 30, 0, sampling=sampling)

    told, again, rounds = made(), made(), stream((3,), 24)
    for number, (x, y) in enumerate(rounds):
        if number == 16:
            again.load_state_dict(told.state_dict())
        told.update(x, y)
    for x, y in rounds[16:]:
        again.update(x, y)
    assert told.posterior.resampled > 2 and same(told.state_dict(), again.state_dict())
    assert sum(told.regret.expected_losses[-8:]) < 8 * math.log(2)


def test_predictions_change_nothing() -> None:
    told, (x, y) = learner(), stream((3,), 1)[0]
    before = told.state_dict()
    assert torch.equal(told.predict(x), told.predict(x))
    told.predict_mean(x)
    assert same(before, told.state_dict())
    copies = x.clone(), y.clone()
    told.update(x, y)
    assert torch.equal(x, copies[0]) and torch.equal(y, copies[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_caller_may_use_its_tensors_again(dtype: torch.dtype) -> None:
    """A learner keeps every round: with buffers that each round is written into, it must not see the last one only."""
    told, again = learner(), learner()
    x, y = torch.empty(4, 3, dtype=dtype), torch.empty(4, dtype=torch.int64)
    inputs, labels = x.numpy(), y.numpy()
    for new_inputs, new_labels in stream((3,), 5):
        told.update(new_inputs.to(dtype), new_labels)
        inputs[:], labels[:] = new_inputs.numpy(), new_labels.numpy()
        again.update(torch.from_numpy(inputs), torch.from_numpy(labels))
    x.zero_(), y.zero_()
    assert same(told.state_dict(), again.state_dict())
    assert told.regret.best_particle().loss == again.regret.best_particle().loss


def test_a_caller_may_use_the_tensors_of_a_graph_again() -> None:
    features, edges = torch.eye(6, dtype=torch.float64), torch.ones(6, 6, dtype=torch.float64)
    told, again = (learner(Graph(Nodes(edges, each), 2, [1, 2], [2])) for each in (features.clone(), features))
    nodes, labels = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1])
    features.zero_(), edges.zero_()
    told.update(nodes.clone(), labels)
    again.update(nodes, labels)
    nodes.zero_()
    assert same(told.state_dict(), again.state_dict())


def test_averages_are_means_over_what_was_drawn() -> None:
    told, kept = learner(), []
    (query, _), *rounds = stream((3,), 6)
    for x, y in rounds:
        kept.append(told.predict(query))
        told.update(x, y)
    assert torch.allclose(told.average().predict(query), torch.stack(kept).mean(0))
    with pytest.raises(InvalidInput, match="tensor, got list"):
        told.average().predict(query.tolist())  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_run() -> None:
    one, two, other = learner(seed=1), learner(seed=1), learner(seed=2)
    for x, y in stream((3,), 3):
        for each in (one, two, other):
            each.update(x, y)
    assert same(one.state_dict(), two.state_dict())
    assert not same(one.state_dict()["latent"], other.state_dict()["latent"])


def test_architectures_are_kept_round_by_round() -> None:
    told, kept = learner(), []
    for x, y in stream((3,), 4):
        told.update(x, y)
        kept.append(told.posterior.probabilities())
    assert told.architectures == tuple(kept)


@pytest.mark.slow
def test_the_posterior_finds_the_simpler_structure() -> None:
    """Where one layer is enough, every seed ends there, from a prior of one half."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(50 + seed)
        sampling = Sampling(sweeps=4, leapfrog=2)
        told = OnlineLearner(Dense((2,), 2, [1, 2], [4]), Prior(0.5, 5.0), 1.0, 100, seed, sampling=sampling)
        for _ in range(60):
            x = torch.randn(8, 2, generator=generator)
            told.update(x, (x[:, 0] > 0).long())
        assert told.architectures[-1][told.space.structures[0]] > 0.9


@pytest.mark.slow
def test_digits_are_learnt() -> None:
    """One image a round, none seen twice: fewer than 12% of the last 300 of 1,000 are got wrong by the mean prediction.

    λ is 0.5: above 1 the second-order term holds networks near the loss of what was drawn. The posterior of the two
    structures, as likely at first, leaves the prior.
    """
    x, y = digits("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:1000]
    space = Dense((64,), 10, [1, 2], [16])
    sampling = Sampling(threshold=0.5, sweeps=8, leapfrog=3)
    told = OnlineLearner(space, Prior(0.3, 10.0), 0.5, 40, 0, sampling=sampling)
    wrong = []
    for image, label in zip(x[order].reshape(-1, 1, 64), y[order].reshape(-1, 1), strict=True):
        wrong.append(int(told.predict_mean(image).argmax(1) != label))
        told.update(image, label)
    assert sum(wrong[-300:]) / 300 < 0.12
    assert told.regret.expected_loss < 0.6 * told.regret.uniform_loss
    assert max(told.posterior.probabilities().values()) > 0.9


@pytest.mark.slow
def test_xnor_networks_learn_digits() -> None:
    """Four images a round, none seen twice: the mean prediction gets most images of the last 100 rounds right."""
    x, y = digits("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[:1000]
    space = Xnor((64,), 10, [3], [8, 16])
    sampling = Sampling(threshold=0.7, sweeps=5, leapfrog=3)
    told = OnlineLearner(space, Prior(0.3, 10.0), 1.0, 40, 0, sampling=sampling)
    wrong = []
    for images, labels in zip(x[order].reshape(-1, 4, 64), y[order].reshape(-1, 4), strict=True):
        wrong.append(float((told.predict_mean(images).argmax(1) != labels).double().mean()))
        told.update(images, labels)
    assert sum(wrong[-100:]) / 100 < 0.5  # of ten classes, a guess gets 0.9 wrong
    assert sum(told.regret.expected_losses[-100:]) < 0.8 * 100 * math.log(10)
    assert told.posterior.sparsity(0.3).signs > 0


@pytest.mark.parametrize("space", [None, Xnor((3,), 2, [3, 4], [2])], ids=["dense", "xnor"])
def test_a_run_goes_on_from_a_file_as_if_nothing_had_happened(space: Space | None, tmp_path: Path) -> None:
    whole, first = learner(space), learner(space)
    rounds = stream((3,), 6)
    for x, y in rounds:
        whole.update(x, y)
    for x, y in rounds[:3]:
        first.update(x, y)
    first.save(tmp_path / "learner.pt")
    second = learner(space, seed=99)
    second.load(tmp_path / "learner.pt")
    assert same(first.state_dict(), second.state_dict())
    for x, y in rounds[3:]:
        second.update(x, y)
    assert whole.posterior.resampled > first.posterior.resampled > 0
    assert same(whole.state_dict(), second.state_dict())


REFUSED = [
    (torch.zeros(2, 3), torch.tensor([0, 2]), "from 0 to 1"),
    (torch.zeros(2, 3), torch.tensor([0, -1]), "from 0 to 1"),
    (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "integers"),
    (torch.zeros(2, 3), torch.tensor([0]), "one for each of 2"),
    (torch.zeros(2, 3), [0, 1], "integers"),
    (torch.zeros(2, 4), torch.tensor([0, 1]), r"\(batch, 3\).*\(2, 4\)"),
    (torch.zeros(3), torch.tensor([0]), r"\(batch, 3\)"),
    (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), r"\(0, 3\)"),
    (torch.full((2, 3), math.nan), torch.tensor([0, 1]), "finite"),
    (torch.full((2, 3), math.inf), torch.tensor([0, 1]), "finite"),
    ([[0.0] * 3], torch.tensor([0]), "tensor"),
]


@pytest.mark.parametrize(("x", "y", "message"), REFUSED)
def test_what_is_refused_changes_nothing(x: torch.Tensor, y: torch.Tensor, message: str, begun: OnlineLearner) -> None:
    before = begun.state_dict()
    with pytest.raises(InvalidInput, match=message):
        begun.update(x, y)
    assert same(before, begun.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bool])
def test_nodes_are_whole_numbers(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidInput, match=f"numbers of nodes, integers .* got {dtype}"):
        learner(ring(torch.eye(6))).update(torch.zeros(2, dtype=dtype), torch.tensor([0, 1]))


@pytest.mark.parametrize(("lam", "size"), [(1e200, 1.0), (1.0, 1e300), (1.0, 1.7e308)])
def test_losses_beyond_all_numbers_are_refused_and_change_nothing(lam: float, size: float) -> None:
    """The last overflows in the logits, and the others in h: without a word, weights would be no numbers any more."""
    told, (x, y) = learner(lam=lam), stream((3,), 1)[0]
    before = told.state_dict()
    with pytest.raises(InvalidInput, match=rf"of 40 particles, with lam = {re.escape(f'{lam:g}')}.*smaller lam or tau"):
        told.update(torch.full_like(x, size, dtype=torch.float64), y)
    assert same(before, told.state_dict())


@pytest.mark.parametrize("lam", [1e-300, 1e9, 1e100])
def test_with_any_lambda_weights_are_probabilities(lam: float) -> None:
    told = OnlineLearner(Dense((3,), 2, [1, 2], [2]), Prior(0.3, 3.0), lam, 20, sampling=Sampling(sweeps=1))
    for x, y in stream((3,), 2):
        told.update(x, y)
    assert math.isclose(sum(told.posterior.probabilities().values()), 1, rel_tol=1e-8)
    assert torch.allclose(told.predict_mean(x).sum(1), torch.ones(4, dtype=torch.float64))
    assert 1 - 1e-9 <= told.posterior.effective_size <= 20 + 1e-9


def test_rounds_of_any_size_with_one_and_the_same_label() -> None:
    told = learner(particles=30)
    for number, size in enumerate((4, 1, 9, 40) * 2):
        x, _ = stream((3,), 1, batch=size, seed=number)[0]
        told.update(x, torch.ones(size, dtype=torch.uint16))
    assert float(told.predict_mean(x)[:, 1].mean()) > 0.55
    assert sum(told.regret.expected_losses[4:]) < sum(told.regret.expected_losses[:4])


def test_an_update_that_is_interrupted_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told, (x, y) = learner(lam=8.0), stream((3,), 1)[0]
    before = told.state_dict()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tamis.bayes.posterior.move_within_structures", interrupted)
        with pytest.raises(KeyboardInterrupt):
            told.update(x, y)
    assert same(before, told.state_dict())
    told.update(x, y)
    assert told.rounds == 1


def test_states_of_other_learners_are_refused(tmp_path: Path) -> None:
    state = learner().state_dict()
    for other in (learner(lam=1.0), learner(particles=41), learner(Dense((3,), 2, [1, 2], [2, 4]))):
        before = other.state_dict()
        with pytest.raises(InvalidInput, match="another learner"):
            other.load_state_dict(state)
        assert same(before, other.state_dict())
    with pytest.raises(InvalidInput, match="lacks"):
        learner().load_state_dict({"identity": state["identity"]})
    for content in (b"", b"not a state", b"PK\x03\x04 cut short"):
        (tmp_path / "cut.pt").write_bytes(content)
        with pytest.raises(CorruptArtifact, match=r"cut\.pt"):
            learner().load(tmp_path / "cut.pt")
    assert json.loads(state["identity"])["particles"] == 40


def test_states_of_other_graphs_are_refused() -> None:
    state = learner(ring(torch.eye(6))).state_dict()
    for other in (ring(torch.eye(6).flip(0)), ring(torch.eye(6), itself=2.0)):
        with pytest.raises(InvalidInput, match="another learner"):
            learner(other).load_state_dict(state)
    learner(ring(torch.eye(6, dtype=torch.float64))).load_state_dict(state)  # one and the same


@pytest.fixture(scope="module")
def begun() -> OnlineLearner:
    told = learner()
    for x, y in stream((3,), 3):
        told.update(x, y)
    return told


@pytest.fixture(scope="module")
def donor() -> OnlineLearner:
    """Another learner of the same kind, whose state `begun` could take."""
    told = learner(seed=1)
    for x, y in stream((3,), 4, seed=1):
        told.update(x, y)
    return told


def malformed(good: object) -> dict[str, object]:
    """What may stand in a state in the place of an entry, and be none."""
    found: dict[str, object] = {
        "None": None,
        "text": "x",
        "another type": {"x": "y"} if isinstance(good, dict) else {},
        "another tensor": torch.zeros(3),
        "a list of text": ["x"],
        "no number": math.nan,
    }
    if isinstance(good, torch.Tensor):
        found |= {"cut": good[:-1], "another dtype": good.to(torch.float16), "a dimension more": good[None]}
        found |= {"too large": torch.full_like(good, 255 if good.dtype is torch.uint8 else 10**9)}
        if good.is_floating_point():
            found |= {"no numbers": torch.full_like(good, math.nan), "infinite": torch.full_like(good, math.inf)}
    if isinstance(good, list):
        found |= {"cut": good[:-1], "none": [], "one more": [*good, good[-1]], "one None": [*good[:-1], None]}
        found |= {"one empty": [*good[:-1], []], "one infinite": [*good[:-1], math.inf], "one large": [*good[:-1], 99]}
        found |= {"one tensor": [*good[:-1], torch.full((2, 9), math.nan)]}
    return found


POSSIBLE = {"too large": ["latent", "energy", "step", "reserve", "curvature"], "one large": ["drawn", "expected"]}
ENTRIES = list(learner().state_dict())


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_state_with_a_malformed_entry_is_refused_by_name_and_changes_nothing(
    entry: str, begun: OnlineLearner, donor: OnlineLearner
) -> None:
    before, state = begun.state_dict(), donor.state_dict()
    for kind, found in malformed(state[entry]).items():
        if entry in POSSIBLE.get(kind, ()):
            continue
        with pytest.raises(InvalidInput, match=entry if entry != "identity" else "another learner"):
            begun.load_state_dict({**state, entry: found})
        assert same(before, begun.state_dict()), kind


def test_what_is_no_state_at_all_is_refused() -> None:
    for found in (None, [], "x"):
        with pytest.raises(InvalidInput, match=f"state_dict gives, not a {type(found).__name__}"):
            learner().load_state_dict(found)  # type: ignore[arg-type]


def test_a_learner_keeps_copies_of_a_state(begun: OnlineLearner) -> None:
    told, state = learner(), begun.state_dict()
    told.load_state_dict(state)
    for entry in state.values():
        for part in entry if isinstance(entry, list) else [entry]:
            if isinstance(part, torch.Tensor):
                part.zero_()
    assert same(told.state_dict(), begun.state_dict())


@pytest.mark.parametrize("lam", [0.0, -0.5, math.nan, math.inf])
def test_lambda_must_be_above_zero(lam: float) -> None:
    with pytest.raises(InvalidInput, match="lam"):
        learner(lam=lam)


@pytest.mark.parametrize("lam", ["1", None, True, torch.tensor(1.0)])
def test_lambda_must_be_a_number(lam: object) -> None:
    with pytest.raises(InvalidInput, match="lam must be a number"):
        learner(lam=lam)  # type: ignore[arg-type]
    learner(lam=1.0).load_state_dict(learner(lam=1).state_dict())  # one and the same


def test_other_arguments() -> None:
    with pytest.raises(InvalidInput, match="seed"):
        learner(seed=-1)
    with pytest.raises(InvalidInput, match="particles"):
        learner(particles=0)
    with pytest.raises(InvalidInput, match="first update"):
        learner().average()


def test_tuning_is_of_order_one_over_root_t() -> None:
    assert (tune(100).lam, tune(100).tau) == (0.1, 0.1)
    assert tune(400, lam=2.0, tau=0.5).tau == 0.025
    with pytest.raises(InvalidInput, match="rounds"):
        tune(0)
