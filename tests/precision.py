"""The rule for errors: at most twice those of the reference, plus rounding."""

import torch


def assert_as_good(names, exact, theirs, ours, *, terms):
    """Compare root mean squares of errors, over a few draws, of results that have names.

    Args:
        names: of the results of a draw.
        exact: by the reference in float64, a list of results for each draw.
        theirs: by the reference in the precision that is tested.
        ours: by what is tested, in the same precision.
        terms: how many the longest sum has.
    """
    for place, name in enumerate(names):
        best, rounded, found = ([draw[place] for draw in draws] for draws in (exact, theirs, ours))
        assert all(x.isfinite().all() for x in found), name
        size, error, own = rms(best), rms(rounded, best), rms(found, best)
        most = 2 * error + rounding(found[0].dtype, terms, size)
        assert own <= most, f"{name}: {own:.2g} > {most:.2g}; the reference has {error:.2g}"


def rounding(dtype, terms, size):
    """What rounding alone may add to the error of results of a dtype and a size.

    One rounding of the result, and one for every term of the longest sum, in the precision of the
    arithmetic: half precision is only that of tokens and results. Terms of order one may cancel.
    """
    work = torch.promote_types(dtype, torch.float32)
    return torch.finfo(dtype).eps * size + torch.finfo(work).eps * terms * max(size, 1.0)


def rms(found, exact=None):
    exact = [torch.zeros_like(x) for x in found] if exact is None else exact
    errors = [(x.double() - y.double()).flatten() for x, y in zip(found, exact, strict=True)]
    return torch.cat(errors).square().mean().sqrt().item() if errors[0].numel() else 0.0
