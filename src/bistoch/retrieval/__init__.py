"""Hub correction for nearest-neighbour search: one number per document, for any index.

Some documents are near to every query and fill the result lists of searches they do not answer.
The column potentials of the balanced plan between past queries and documents measure that, and
subtract it.
"""

from bistoch.retrieval.correction import HubCorrection as HubCorrection
from bistoch.retrieval.lists import HubReport as HubReport
from bistoch.retrieval.lists import Occurrences as Occurrences
from bistoch.retrieval.temperature import perplexity_eps as perplexity_eps
