"""Expected sliced transport: the average of the sorted matchings along many lines."""

from bistoch.functional.sliced.api import sliced_attention as sliced_attention
from bistoch.functional.sliced.api import sliced_plan as sliced_plan
