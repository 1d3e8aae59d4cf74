"""Each file has one theorem as a function, which returns a `Bound`, rounded up, with what it assumes and its source.

- Inputs and parameters (path-norms): `lipschitz_input`, `lipschitz_parameters`, `phi_pruning`, `layer_product`,
  `box_deviation`, and how many bits are enough: `sufficient_bits`, `sufficient_bits_by_paths`.
- Counts on held-out samples: `error_rate`, `disagreement`, `clopper_pearson`, `accuracy_change`,
  `accuracy_change_by_difference`, `deviation_quantile`; at every number of samples: `rate_at_any_time`,
  `difference_at_any_time`.
- Generalization from training data: `occam`, `margin_bound`, `cross_entropy_gap`, by the Rademacher complexities
  `rademacher_peeling`, `rademacher_covering` and their predecessors `kakade`, `e_ma_wu`, `neyshabur`, `golowich`,
  `barron_klusowski`; of L1,∞-normalized networks: `l1inf_constants`, `l1inf_output`, `l1inf_rademacher`,
  `l1inf_regression`, `l1inf_classification`, `l1inf_lipschitz_loss`, `l1inf_lipschitz_vector_loss`.
- Learning: `sparse_regret`, `xnor_regret` with `kl_bound`, `kl_exact`, `kl_xnor` and `perturbation_penalties` of
  `dense_layer` and `convolution_layer`; `two_temperature` with `gradient_error`.
- Rates of GPFQ, up to unknown constants, each a `Rate`: `gpfq_relative_error`, `gpfq_new_data`, `gpfq_in_subspace`.

The rest of `__all__` serves other packages of tamis: checks of arguments, arithmetic that rounds up, and the wording of
assumptions.

Example:
    >>> from tamis.bounds import error_rate
    >>> round(error_rate(errors=0, n=100, delta=0.05).value, 6)
    0.029513
"""

from tamis.bounds.accuracy_change import accuracy_change as accuracy_change
from tamis.bounds.accuracy_change_by_difference import accuracy_change_by_difference as accuracy_change_by_difference
from tamis.bounds.arguments import check_count as check_count
from tamis.bounds.arguments import check_number as check_number
from tamis.bounds.arguments import check_positive as check_positive
from tamis.bounds.binomial import log_upper_tail as log_upper_tail
from tamis.bounds.binomial import smallest_rate as smallest_rate
from tamis.bounds.bound import Bound as Bound
from tamis.bounds.bound import exp_rounded_up as exp_rounded_up
from tamis.bounds.bound import log_rounded_up as log_rounded_up
from tamis.bounds.box_deviation import box_deviation as box_deviation
from tamis.bounds.clopper_pearson import clopper_pearson as clopper_pearson
from tamis.bounds.confidence_sequence import difference_at_any_time as difference_at_any_time
from tamis.bounds.confidence_sequence import rate_at_any_time as rate_at_any_time
from tamis.bounds.cross_entropy_gap import cross_entropy_gap as cross_entropy_gap
from tamis.bounds.deviation_quantile import deviation_at_rank as deviation_at_rank
from tamis.bounds.deviation_quantile import deviation_quantile as deviation_quantile
from tamis.bounds.disagreement import disagreement as disagreement
from tamis.bounds.error_rate import error_rate as error_rate
from tamis.bounds.gpfq_rates import gpfq_in_subspace as gpfq_in_subspace
from tamis.bounds.gpfq_rates import gpfq_new_data as gpfq_new_data
from tamis.bounds.gpfq_rates import gpfq_relative_error as gpfq_relative_error
from tamis.bounds.held_out import UNSEEN as UNSEEN
from tamis.bounds.interval_affine import interval_rule as interval_rule
from tamis.bounds.l1inf_class import L1InfConstants as L1InfConstants
from tamis.bounds.l1inf_class import l1inf_constants as l1inf_constants
from tamis.bounds.l1inf_classification import l1inf_classification as l1inf_classification
from tamis.bounds.l1inf_classification import l1inf_lipschitz_vector_loss as l1inf_lipschitz_vector_loss
from tamis.bounds.l1inf_output import l1inf_output as l1inf_output
from tamis.bounds.l1inf_rademacher import l1inf_rademacher as l1inf_rademacher
from tamis.bounds.l1inf_regression import l1inf_lipschitz_loss as l1inf_lipschitz_loss
from tamis.bounds.l1inf_regression import l1inf_regression as l1inf_regression
from tamis.bounds.layer_product import layer_product as layer_product
from tamis.bounds.lipschitz_input import lipschitz_input as lipschitz_input
from tamis.bounds.lipschitz_parameters import lipschitz_parameters as lipschitz_parameters
from tamis.bounds.margin import margin_bound as margin_bound
from tamis.bounds.occam import occam as occam
from tamis.bounds.phi_pruning import phi_pruning as phi_pruning
from tamis.bounds.rademacher_covering import rademacher_covering as rademacher_covering
from tamis.bounds.rademacher_peeling import rademacher_peeling as rademacher_peeling
from tamis.bounds.rademacher_predecessors import barron_klusowski as barron_klusowski
from tamis.bounds.rademacher_predecessors import e_ma_wu as e_ma_wu
from tamis.bounds.rademacher_predecessors import golowich as golowich
from tamis.bounds.rademacher_predecessors import kakade as kakade
from tamis.bounds.rademacher_predecessors import neyshabur as neyshabur
from tamis.bounds.rate import Rate as Rate
from tamis.bounds.regret import EXPECTED as EXPECTED
from tamis.bounds.regret import LEARNER as LEARNER
from tamis.bounds.regret import OBLIVIOUS as OBLIVIOUS
from tamis.bounds.regret import Expert as Expert
from tamis.bounds.regret import price_of_lambda as price_of_lambda
from tamis.bounds.regret import sparse_regret as sparse_regret
from tamis.bounds.regret import sum_rounded_up as sum_rounded_up
from tamis.bounds.regret import xnor_regret as xnor_regret
from tamis.bounds.regret_divergence import NODES as NODES
from tamis.bounds.regret_divergence import WEIGHTS as WEIGHTS
from tamis.bounds.regret_divergence import as_expert_weights as as_expert_weights
from tamis.bounds.regret_divergence import kl_bound as kl_bound
from tamis.bounds.regret_divergence import kl_exact as kl_exact
from tamis.bounds.regret_divergence import kl_xnor as kl_xnor
from tamis.bounds.regret_penalties import PerturbedLayer as PerturbedLayer
from tamis.bounds.regret_penalties import convolution_layer as convolution_layer
from tamis.bounds.regret_penalties import dense_layer as dense_layer
from tamis.bounds.regret_penalties import perturbation_penalties as perturbation_penalties
from tamis.bounds.sufficient_bits import sufficient_bits as sufficient_bits
from tamis.bounds.sufficient_bits import sufficient_bits_by_paths as sufficient_bits_by_paths
from tamis.bounds.two_temperature import gradient_error as gradient_error
from tamis.bounds.two_temperature import two_temperature as two_temperature

__all__ = [
    "EXPECTED",
    "LEARNER",
    "NODES",
    "OBLIVIOUS",
    "UNSEEN",
    "WEIGHTS",
    "Bound",
    "Expert",
    "L1InfConstants",
    "PerturbedLayer",
    "Rate",
    "accuracy_change",
    "accuracy_change_by_difference",
    "as_expert_weights",
    "barron_klusowski",
    "box_deviation",
    "check_count",
    "check_number",
    "check_positive",
    "clopper_pearson",
    "convolution_layer",
    "cross_entropy_gap",
    "dense_layer",
    "deviation_at_rank",
    "deviation_quantile",
    "difference_at_any_time",
    "disagreement",
    "e_ma_wu",
    "error_rate",
    "exp_rounded_up",
    "golowich",
    "gpfq_in_subspace",
    "gpfq_new_data",
    "gpfq_relative_error",
    "gradient_error",
    "interval_rule",
    "kakade",
    "kl_bound",
    "kl_exact",
    "kl_xnor",
    "l1inf_classification",
    "l1inf_constants",
    "l1inf_lipschitz_loss",
    "l1inf_lipschitz_vector_loss",
    "l1inf_output",
    "l1inf_rademacher",
    "l1inf_regression",
    "layer_product",
    "lipschitz_input",
    "lipschitz_parameters",
    "log_rounded_up",
    "log_upper_tail",
    "margin_bound",
    "neyshabur",
    "occam",
    "perturbation_penalties",
    "phi_pruning",
    "price_of_lambda",
    "rademacher_covering",
    "rademacher_peeling",
    "rate_at_any_time",
    "smallest_rate",
    "sparse_regret",
    "sufficient_bits",
    "sufficient_bits_by_paths",
    "sum_rounded_up",
    "two_temperature",
    "xnor_regret",
]
