"""Numbers of a plan, of values, hidden states and predictions: tensors in, tensors out.

Every function says its definition, its range and where it comes from. Leading axes are kept: one
number, or one row of numbers, per plan.
"""

from bistoch.analysis.metrics.balance import column_load as column_load
from bistoch.analysis.metrics.balance import column_sums as column_sums
from bistoch.analysis.metrics.balance import doubly_stochastic_error as doubly_stochastic_error
from bistoch.analysis.metrics.balance import load_deviation as load_deviation
from bistoch.analysis.metrics.balance import load_gini as load_gini
from bistoch.analysis.metrics.balance import load_kl as load_kl
from bistoch.analysis.metrics.balance import load_of as load_of
from bistoch.analysis.metrics.balance import load_peak as load_peak
from bistoch.analysis.metrics.balance import mean_entropy as mean_entropy
from bistoch.analysis.metrics.balance import row_entropy as row_entropy
from bistoch.analysis.metrics.birkhoff import birkhoff_distance as birkhoff_distance
from bistoch.analysis.metrics.calibration import auroc as auroc
from bistoch.analysis.metrics.calibration import brier_score as brier_score
from bistoch.analysis.metrics.calibration import calibration_error as calibration_error
from bistoch.analysis.metrics.calibration import negative_log_likelihood as negative_log_likelihood
from bistoch.analysis.metrics.calibration import predictive_entropy as predictive_entropy
from bistoch.analysis.metrics.rank import contraction as contraction
from bistoch.analysis.metrics.rank import effective_rank as effective_rank
from bistoch.analysis.metrics.rank import mean_cosine as mean_cosine
from bistoch.analysis.metrics.rank import rank_one_residual as rank_one_residual
from bistoch.analysis.metrics.rank import second_singular_value as second_singular_value
from bistoch.analysis.metrics.rank import singular_values as singular_values
from bistoch.analysis.metrics.rank import stable_rank as stable_rank
from bistoch.analysis.metrics.rank import worst_contraction as worst_contraction
from bistoch.analysis.metrics.sinks import SINK as SINK
from bistoch.analysis.metrics.sinks import diagonal_score as diagonal_score
from bistoch.analysis.metrics.sinks import off_rate as off_rate
from bistoch.analysis.metrics.sinks import sink_rate as sink_rate
from bistoch.analysis.metrics.sinks import sink_score as sink_score
from bistoch.analysis.metrics.sinks import switch_ratio as switch_ratio
from bistoch.analysis.metrics.sinks import value_drain as value_drain
from bistoch.analysis.metrics.streaming import StreamedPlan as StreamedPlan
from bistoch.analysis.metrics.streaming import stream_plan as stream_plan
