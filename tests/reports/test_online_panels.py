"""The picture of a run of the online learner."""

from tamis.bayes import BOUND, GUESS
from tamis.bayes.summary import LEARNER
from tamis.reports.online_panels import online_panels


def test_losses_stand_beside_architectures_and_what_is_no_loss_of_a_network_is_dashed() -> None:
    points = [(1, 0.5), (2, 1.0)]
    found = {"losses": {LEARNER: points, BOUND: points, GUESS: points}, "architectures": {"1 layer": points}}
    losses, architectures = online_panels(found, "digits")
    assert losses.curves == found["losses"] and architectures.curves == found["architectures"]
    assert set(losses.dashed) == {BOUND, GUESS} and not architectures.dashed
    assert losses.title == architectures.title == "digits"
