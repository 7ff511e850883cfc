"""What arguments may be."""

from jaxtyping import Bool, Float
from torch import Tensor

Option = float | Float[Tensor, "..."]
Mask = Bool[Tensor, "..."] | Float[Tensor, "..."]
