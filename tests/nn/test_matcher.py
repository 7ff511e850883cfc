"""The learned matcher, and what a call brings to operators beside tokens and masks."""

import pytest
import torch

import bistoch
from bistoch.nn import Attention, Elastic, Matcher, OperatorModule, Sinkhorn, Softmax


def test_it_is_match():
    matcher = Matcher(bin_score=0.7, eps=0.5, iters=20, end="columns", threshold=0.1)
    a, b = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    options = {"bin_score": 0.7, "eps": 0.5, "iters": 20, "end": "columns", "threshold": 0.1}
    masks = {"query_mask": torch.arange(5) < 4, "key_mask": torch.arange(7) < 5,
             "mask": torch.rand(5, 7) > 0.2}  # fmt: skip
    scores = a @ b.mT / 8**0.5
    wanted = bistoch.match(scores, **masks, **options)
    for found in (matcher(a, b, **masks), matcher(scores=scores, **masks)):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_it_learns_what_stays_single():
    """A loss at true pairs and at the bins, as SuperGlue's, moves both parameters."""
    made = torch.Generator().manual_seed(0)
    a = torch.nn.functional.normalize(torch.randn(6, 16, generator=made), dim=-1) * 4
    b = torch.cat([a[:4], torch.randn(3, 16, generator=made)])
    matcher = Matcher(bin_score=-3.0, eps=3.0, iters=30)
    adam = torch.optim.Adam(matcher.parameters(), lr=0.1)
    pairs = torch.arange(4)
    losses = []
    for _ in range(60):
        found = matcher(a, b)
        loss = -(found.log_plan[pairs, pairs].sum() + found.log_rows[4:].sum()
                 + found.log_columns[4:].sum()) / 9  # fmt: skip
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert matcher(a, b).pairs[:4].tolist() == [0, 1, 2, 3]
    assert found.rows[4:].min() > 0.5


def test_a_temperature_that_is_not_learned():
    matcher = Matcher(eps=0.3, learn_eps=False)
    assert [name for name, x in matcher.named_parameters() if x.requires_grad] == ["bin_score"]
    assert matcher.eps.item() == pytest.approx(0.3)
    assert "eps=0.3" in repr(matcher)
    again = Matcher(eps=1.0)
    again.load_state_dict(matcher.state_dict())
    assert again.eps.item() == pytest.approx(0.3)


def test_what_is_refused():
    matcher, a = Matcher(), torch.randn(5, 8)
    with pytest.raises(TypeError, match="Matcher: query and key must be descriptors"):
        matcher(a)
    with pytest.raises(TypeError, match="Matcher: scores must be None beside query"):
        matcher(a, a, scores=a)
    with pytest.raises(ValueError, match="Matcher: query and key must have the same number"):
        matcher(a, torch.randn(5, 7))
    with pytest.raises(ValueError, match="match: key_mask must broadcast"):
        matcher(a, a, key_mask=torch.ones(4, dtype=torch.bool))


class TestBrought:
    tokens = torch.randn(3, 2, 4, 5, 8).unbind()
    mass = torch.tensor([1.0, 2, 3, 4, 5])

    @pytest.mark.parametrize("module", [Elastic(lam=0.8), Sinkhorn(iters=50)], ids=repr)
    def test_column_masses_reach_the_operator(self, module):
        q, k, v = self.tokens
        plan = module.plan(q, k, column_mass=self.mass)
        wanted = module.row.plan(q, k, column_mass=self.mass, **module.options())
        torch.testing.assert_close(plan, wanted)
        torch.testing.assert_close(module(q, k, v, column_mass=self.mass), plan @ v)

    def test_a_layer_gives_all_heads_the_same_masses(self):
        layer = Attention(12, 3, operator="sinkhorn(iters=200)")
        x, mass = torch.randn(2, 5, 12), torch.stack([self.mass, self.mass.flip(0)])
        columns = layer.plan(x, column_mass=mass).sum(-2)
        wanted = (mass / 3)[:, None].expand(2, 3, 5)
        torch.testing.assert_close(columns, wanted, atol=1e-3, rtol=1e-3)
        assert layer(x, column_mass=mass).isfinite().all()
        assert not torch.allclose(layer(x, column_mass=mass), layer(x))

    def test_a_generator_reaches_the_operator(self):
        module = OperatorModule(bistoch.OPERATORS["quantum"], shots=50)
        layer = Attention(8, 2, operator=module)
        x = torch.randn(2, 4, 8)
        first, second, third = (
            layer.plan(x, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, third)

    def test_others_refuse(self):
        q, k, v = self.tokens
        for given, reason in (
            ({"column_mass": self.mass}, "column_mass must be None, since this operator has no"),
            ({"row_mass": self.mass}, "row_mass must be None, since rows of attention sum to one"),
            ({"generator": torch.Generator()}, "generator must be None, since this operator draws"),
        ):
            with pytest.raises(TypeError, match=f"softmax: {reason}"):
                Softmax()(q, k, v, **given)
            with pytest.raises(TypeError, match=f"softmax: {reason}"):
                Softmax().plan(q, k, **given)
        with pytest.raises(TypeError, match="elastic: row_mass must be None, since rows"):
            Attention(12, 3, operator="elastic")(torch.randn(2, 5, 12), row_mass=self.mass)
        with pytest.raises(TypeError, match="Attention: column_mass must be a floating-point"):
            Attention(12, 3, operator="elastic")(
                torch.randn(5, 12), column_mass=torch.ones(5).int()
            )

    def test_a_captured_plan_has_the_masses(self):
        from bistoch.analysis import capture

        layer = Attention(12, 3, operator="sinkhorn(iters=50)")
        x = torch.randn(2, 5, 12)
        with capture(layer) as record:
            layer(x, column_mass=self.mass)
        (found,) = record.plans
        torch.testing.assert_close(found.plan, layer.plan(x, column_mass=self.mass))
