"""What the page on chosen steps shows: how many passes they save."""

import warnings
from collections.abc import Iterator

import torch
from making.drawing import put_table, seeded
from torch import Tensor

import bistoch
from bistoch.analysis import capture
from bistoch.lab.data import load
from bistoch.lab.inspect.load import import_transformers, load_subject, read_texts
from bistoch.lab.reproduce.encoder import model_name

TOLS = (1e-1, 1e-2, 1e-3, 1e-4)
ITERS = 2000


def pace() -> None:
    """Passes over the scores until a tolerance, with plain steps and with chosen ones."""
    rows = []
    for name, scores in (*random_scores(), *real_scores()):
        for lam in (1.0, 0.9, 0.5):
            row = [name if lam == 1 else "", f"{lam:g}"]
            for tol in TOLS:
                plain, chosen = (passes(scores, lam, tol, omega) for omega in (1.0, None))
                row.append(f"{mean(plain)} / {mean(chosen)} ({max(plain)} / {max(chosen)})")
            rows.append(row)
    put_table("pace.md", "passes", ["scores", "lam", *(f"tol = {tol:g}" for tol in TOLS)], rows)


def pace_gradient() -> None:
    """How far gradients of problems that stopped are from those of the limit, plain and chosen."""
    rows = []
    for name, scores in random_scores():
        some = scores[0][:4]
        weight = torch.randn(some.shape, generator=seeded(1), dtype=torch.float64)
        for lam in (1.0, 0.9):
            wanted = plan_gradient(some, weight, lam, 1e-9, None)
            row = [name if lam == 1 else "", f"{lam:g}"]
            for tol in TOLS[:3]:
                gaps = []
                for omega in (1.0, None):
                    gap = plan_gradient(some, weight, lam, tol, omega) - wanted
                    gaps.append((gap.flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)).mean())
                row.append(" / ".join(f"{gap:.1e}" for gap in gaps))
            rows.append(row)
    heads = ["scores", "lam", *(f"tol = {tol:g}" for tol in TOLS[:3])]
    put_table("pace.md", "pace_gradient", heads, rows)


def plan_gradient(
    scores: Tensor, weight: Tensor, lam: float, tol: float, omega: float | None
) -> Tensor:
    """The gradient of a weighted sum of the plan, stopped at a tolerance."""
    leaf = scores.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
        plan = bistoch.balance(leaf, lam=lam, tol=tol, omega=omega, iters=500, backend="cpu")
    (grad,) = torch.autograd.grad((plan * weight).sum(), leaf)
    return grad


def mean(counts: list[int]) -> str:
    """An average with one digit behind the point."""
    return f"{sum(counts) / len(counts):.1f}"


def passes(scores: list[Tensor], lam: float, tol: float, omega: float | None) -> list[int]:
    """The iterations of every matrix until its tolerance, or until there were enough."""
    counts = []
    for batch in scores:
        with warnings.catch_warnings():
            # some heads are nearly reducible, and plain steps get nowhere
            warnings.simplefilter("ignore", bistoch.ConvergenceWarning)
            key = torch.eye(batch.shape[-1], dtype=batch.dtype)
            found = bistoch.elastic_potentials(
                batch, key, scale=1.0, lam=lam, tol=tol, omega=omega, iters=ITERS, backend="cpu"
            )
        counts += found.iterations.tolist()
    return counts


def random_scores() -> Iterator[tuple[str, list[Tensor]]]:
    """Dot products of random tokens, independent scores, and a hidden permutation."""
    for eps in (1.0, 0.25, 0.1):
        query, key = torch.randn(2, 16, 128, 32, generator=seeded(0), dtype=torch.float64)
        yield f"random tokens, eps = {eps:g}", [query @ key.mT / 32**0.5 / eps]
    noise = torch.randn(16, 31, 31, generator=seeded(0), dtype=torch.float64)
    yield "near a permutation", [noise + 8 * torch.eye(31, dtype=torch.float64)]


def real_scores() -> Iterator[tuple[str, list[Tensor]]]:
    """The 72 heads of a trained sentence encoder, reading news and one long review."""
    news, reviews = load("agnews").x_test[:6], load("imdb").x_test
    # the encoder reads up to 512 tokens
    long = next(text for text in reviews if len(text) > 1400)[:1200]
    subject = load_subject(model_name(), [long])
    model, transformers = subject.model.double(), import_transformers()

    def heads(text: str) -> Tensor:
        (batch,), _, _ = read_texts(transformers, subject.name, model.config, [text])
        with torch.no_grad(), capture(model, states=None) as seen:
            model(**batch)
        # scores are known up to a number for every row, which no plan can see
        return torch.cat([plan.plan[0] for plan in seen.plans]).log()

    yield "sentence encoder, news", [heads(text) for text in news]
    yield "sentence encoder, a review", [heads(long)]
