"""Search without hubs: left halves of pictures look for their right halves, among 1000."""

import numpy as np

from bistoch.lab.search.halves import load_halves
from bistoch.retrieval import HubCorrection

halves = load_halves()


def found_first(queries, documents):
    """Share of the queries whose own document has the highest score."""
    best = (queries @ documents.T).argmax(1)
    return (best == np.arange(len(queries))).mean()


print(f"cosine search        {found_first(halves.queries, halves.documents):.1%} found first")

# past queries tell which documents are hubs; no labels are used
hubs = HubCorrection(lam=0.9).fit(halves.bank, halves.documents)
corrected = found_first(hubs.queries(halves.queries), hubs.documents(halves.documents))
print(f"bias of past queries {corrected:.1%} found first")

# where all queries are known in advance, and each has one document, full balance
known = HubCorrection(lam=1.0).fit(halves.queries, halves.documents)
corrected = found_first(known.queries(halves.queries), known.documents(halves.documents))
print(f"queries known        {corrected:.1%} found first")

report = hubs.report(halves.queries, k=10)
print(f"largest hub: in {report.before.largest} of 1000 lists before, {report.after.largest} after")
