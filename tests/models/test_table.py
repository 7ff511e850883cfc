"""The table of models: every row builds, learns, is saved, and shows its plans and states."""

import json
from dataclasses import asdict

import pytest
import torch

import bistoch
from bistoch.analysis import capture
from bistoch.models import MODELS, PRESETS, build_model, default_operator, operators

# the smallest config of each model, and what it is given
SMALL = {
    "vit": {"image": (6, 10), "patch": (3, 5), "classes": 3, "dim": 8, "heads": 2, "depth": 2},
    "stochastic_vit": {
        "image": (6, 10),
        "patch": (3, 5),
        "classes": 3,
        "dim": 8,
        "heads": 2,
        "depth": 2,
        "lam": 0.5,
        "iters": 3,
    },
    "set_transformer": {"classes": 3, "dim": 8, "heads": 2, "inducing": 5},
    "point_transformer": {"classes": 3, "dim": 8, "heads": 2, "depth": 2, "summary": 10},
    "text": {"vocabulary": 11, "classes": 3, "dim": 8, "heads": 2},
    "lm": {"vocabulary": 11, "depth": 2, "dim": 8, "heads": 2},
    "forecast": {"channels": 5, "lookback": 7, "horizon": 3, "extend": 2, "dim": 8, "heads": 2},
    "itransformer": {"channels": 5, "lookback": 7, "horizon": 3, "dim": 8, "heads": 2},
}


def example(name):
    """A batch for the model, and the shape of its answer."""
    ids = torch.randint(1, 11, (2, 7))
    return {
        "vit": (torch.randn(2, 6, 10), (2, 3)),
        "stochastic_vit": (torch.randn(2, 6, 10), (2, 3)),
        "set_transformer": (torch.randn(2, 11, 3), (2, 3)),
        "point_transformer": (torch.randn(2, 11, 3), (2, 3)),
        "text": (ids, (2, 3)),
        "lm": (ids, (2, 7, 11)),
        "forecast": (torch.randn(2, 7, 5), (2, 3, 5)),
        "itransformer": (torch.randn(2, 7, 5), (2, 3, 5)),
    }[name]


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def fitting(name):
    """An operator that differs from softmax and serves the model, if it takes one."""
    if MODELS[name].operator is None:
        return None
    return "entmax" if name == "lm" else "elastic(learn='head', lam=0.5, iters=3)"


def test_every_model_learns_every_parameter(name):
    model = build_model(name, fitting(name), **SMALL[name])
    x, shape = example(name)
    result = model(x)
    assert result.shape == shape
    result.square().sum().backward()
    learned = {n: p.grad for n, p in model.named_parameters()}
    silent = [n for n, grad in learned.items() if grad is None or not grad.isfinite().all()]
    assert silent == []


def test_every_model_shows_its_plans_and_states(name):
    if MODELS[name].operator is None:
        pytest.skip("its attention is its own, and no operator")
    model = build_model(name, fitting(name), **SMALL[name]).eval()
    x, _ = example(name)
    with torch.no_grad():
        before = model(x)
        with capture(model) as seen:
            assert torch.equal(model(x), before)
    assert len(seen.plans) == len(operators(model)) >= 2
    for plan in seen.plans:
        assert plan.source == "operator"
        torch.testing.assert_close(plan.plan.sum(-1), torch.ones(plan.plan.shape[:-1]))
    names = [state.name for state in seen.states]
    assert names == ["blocks.0.input", "blocks.0", "blocks.1"]


def test_config_and_weights_survive_a_file(name):
    model = build_model(name, fitting(name), **SMALL[name]).eval()
    x, _ = example(name)
    saved = json.loads(json.dumps(asdict(model.config)))
    other = build_model(name, fitting(name), **saved).eval()
    assert other.config == model.config
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))
    # safetensors refuses tensors that share memory
    places = [tensor.data_ptr() for tensor in model.state_dict().values() if tensor.numel()]
    assert len(set(places)) == len(places)


def test_no_sample_feels_its_neighbours(name):
    model = build_model(name, fitting(name), **SMALL[name]).double().eval()
    x, _ = example(name)
    x = x.double() if x.is_floating_point() else x
    together = model(x)
    alone = torch.cat([model(one[None]) for one in x])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_a_model_is_built_with_the_operator_of_its_row(name):
    operator = MODELS[name].operator
    assert default_operator(f"{name}(dim=8)") == operator
    found = [type(module) for module in operators(build_model(name, **SMALL[name])).values()]
    if operator is None:
        assert found == []
        with pytest.raises(ValueError, match=r"takes no operator.*'sinkhorn'; leave it out.*lam="):
            build_model(name, "sinkhorn", **SMALL[name])
        return
    asked = operators(build_model(name, operator, **SMALL[name])).values()
    assert found == [type(module) for module in asked] != []


def test_a_forecaster_mixes_as_published_unless_it_is_told():
    for name in ("forecast", "forecast_etth1(dim=8, heads=2, extend=2)"):
        model = build_model(name, channels=7)
        assert {str(module) for module in operators(model).values()} == {"mixing(tokens=7)"}
    with pytest.raises(ValueError, match="unknown name 'forcast'"):
        default_operator("forcast")


def test_rows_name_real_fields(name):
    row = MODELS[name]
    assert set(row.sizes) <= set(row.config.__dataclass_fields__)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_build(preset):
    row = MODELS[PRESETS[preset].model]
    sizes = {"vocabulary": 11, "classes": 2, "channels": 7}
    wanted = {k: v for k, v in sizes.items() if k in row.sizes and k not in PRESETS[preset].options}
    with torch.device("meta"):
        model = build_model(preset, **wanted)
    for option, value in PRESETS[preset].options.items():
        assert getattr(model.config, option) == value


def test_words_win_over_the_preset_and_names_over_words():
    model = build_model("vit_stripes(depth=3, dim=16)", dim=8)
    assert (model.config.depth, model.config.dim, model.config.heads) == (3, 8, 1)


@pytest.mark.parametrize(
    "operator", [name for name, row in bistoch.OPERATORS.items() if row.name != "mixing"]
)
def test_the_eight_tokens_take_every_operator(operator):
    # a class token stands first, where a causal row sees nothing else
    pool = "mean" if bistoch.OPERATORS[operator].always_causal else "cls"
    model = build_model("vit_stripes(dim=8)", operator, pool=pool)
    result = model(torch.rand(2, 28, 28))
    assert result.isfinite().all()
    result.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("vitt", ValueError, "model: unknown name 'vitt' in 'vitt'; known are vit, stochastic_"),
        ("vit(", ValueError, r"model: cannot read 'vit\(';.*vit\(depth=2, dim=128\)"),
        ("vit(deep=2)", TypeError, "vit: unknown option 'deep'; it takes image, classes"),
        ("text", TypeError, "text: vocabulary and classes must be given, since the data decide"),
        (3, TypeError, "model: must be text such as"),
    ],
)
def test_mistakes_are_told(text, kind, sentence):
    with pytest.raises(kind, match=f"^{sentence}"):
        build_model(text)


@pytest.mark.slow
def test_every_model_compiles_as_one_graph(name):
    model = build_model(name, fitting(name), **SMALL[name]).eval()
    x, _ = example(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
