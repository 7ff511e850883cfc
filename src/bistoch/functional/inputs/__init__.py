"""The one place for user input: every check and every error sentence of the operators lives here.

A sentence names the operator, the argument, what was expected in words, what came in numbers, and
the remedy.
"""

from bistoch.functional.inputs.kinds import Mask as Mask
from bistoch.functional.inputs.kinds import Option as Option
from bistoch.functional.inputs.matching import check_capacity as check_capacity
from bistoch.functional.inputs.matching import check_price as check_price
from bistoch.functional.inputs.matching import check_slack as check_slack
from bistoch.functional.inputs.options import check_blur as check_blur
from bistoch.functional.inputs.options import check_capacity_factor as check_capacity_factor
from bistoch.functional.inputs.options import check_choice as check_choice
from bistoch.functional.inputs.options import check_circuit as check_circuit
from bistoch.functional.inputs.options import check_count as check_count
from bistoch.functional.inputs.options import check_decay as check_decay
from bistoch.functional.inputs.options import check_eps as check_eps
from bistoch.functional.inputs.options import check_finite as check_finite
from bistoch.functional.inputs.options import check_flag as check_flag
from bistoch.functional.inputs.options import check_generator as check_generator
from bistoch.functional.inputs.options import check_inner as check_inner
from bistoch.functional.inputs.options import check_lam as check_lam
from bistoch.functional.inputs.options import check_literals as check_literals
from bistoch.functional.inputs.options import check_logit as check_logit
from bistoch.functional.inputs.options import check_noise as check_noise
from bistoch.functional.inputs.options import check_omega as check_omega
from bistoch.functional.inputs.options import check_prior as check_prior
from bistoch.functional.inputs.options import check_probability as check_probability
from bistoch.functional.inputs.options import check_qubits as check_qubits
from bistoch.functional.inputs.options import check_rank as check_rank
from bistoch.functional.inputs.options import check_ridge as check_ridge
from bistoch.functional.inputs.options import check_scale as check_scale
from bistoch.functional.inputs.options import check_tau as check_tau
from bistoch.functional.inputs.options import check_text as check_text
from bistoch.functional.inputs.options import check_theta as check_theta
from bistoch.functional.inputs.options import check_tol as check_tol
from bistoch.functional.inputs.options import check_top_k as check_top_k
from bistoch.functional.inputs.options import refuse_triton as refuse_triton
from bistoch.functional.inputs.options import refuse_watcher as refuse_watcher
from bistoch.functional.inputs.padding import PaddingWarning as PaddingWarning
from bistoch.functional.inputs.padding import warn_half_padding as warn_half_padding
from bistoch.functional.inputs.predictions import check_outliers as check_outliers
from bistoch.functional.inputs.predictions import check_probabilities as check_probabilities
from bistoch.functional.inputs.predictions import check_target as check_target
from bistoch.functional.inputs.states import check_cache as check_cache
from bistoch.functional.inputs.states import check_leading_axis as check_leading_axis
from bistoch.functional.inputs.states import check_state as check_state
from bistoch.functional.inputs.tensors import check_device as check_device
from bistoch.functional.inputs.tensors import check_floating as check_floating
from bistoch.functional.inputs.tensors import check_width as check_width
from bistoch.functional.inputs.tokens import check_column_mass as check_column_mass
from bistoch.functional.inputs.tokens import check_equal_masses as check_equal_masses
from bistoch.functional.inputs.tokens import check_equal_padding as check_equal_padding
from bistoch.functional.inputs.tokens import check_mask as check_mask
from bistoch.functional.inputs.tokens import check_padding as check_padding
from bistoch.functional.inputs.tokens import check_row_mass as check_row_mass
from bistoch.functional.inputs.tokens import check_shared_mask as check_shared_mask
from bistoch.functional.inputs.tokens import check_square as check_square
from bistoch.functional.inputs.tokens import check_start as check_start
from bistoch.functional.inputs.tokens import check_tokens as check_tokens
from bistoch.functional.inputs.tokens import check_variance as check_variance
from bistoch.functional.inputs.tokens import check_vectors as check_vectors
from bistoch.functional.inputs.tokens import check_weight as check_weight
from bistoch.functional.inputs.tokens import refuse_pairs as refuse_pairs
from bistoch.functional.inputs.torch_names import REMEDIES as REMEDIES
from bistoch.functional.inputs.torch_names import without_torch_names as without_torch_names
from bistoch.functional.inputs.warn import warn_caller as warn_caller
