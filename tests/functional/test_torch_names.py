"""Arguments of torch's attention are passed over or answered, by every operator."""

import pickle

import pytest
import torch

import bistoch

Q, K, V = torch.randn(3, 2, 4, 4).unbind()
BROUGHT = {
    "attn_mask": torch.ones(4, 4, dtype=torch.bool),
    "dropout_p": 0.1,
    "is_causal": True,
    "enable_gqa": True,
    "key_padding_mask": torch.zeros(2, 4, dtype=torch.bool),
    "need_weights": True,
    "cu_seqlens": torch.tensor([0, 4]),
}


def variances(operator):
    return {"query_variance": Q.exp(), "key_variance": K.exp()} if operator == "wasserstein" else {}


@pytest.mark.parametrize("operator", bistoch.OPERATORS)
def test_what_asks_for_nothing_passes(operator):
    attend, more = getattr(bistoch, f"{operator}_attention"), variances(operator)
    nothing = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
    torch.testing.assert_close(attend(Q, K, V, **more, **nothing), attend(Q, K, V, **more))


@pytest.mark.parametrize("operator", bistoch.OPERATORS)
@pytest.mark.parametrize("name", BROUGHT)
def test_what_asks_for_something_is_answered(operator, name):
    attend = getattr(bistoch, f"{operator}_attention")
    with pytest.raises(TypeError, match=f"^{operator}_attention: there is no {name}: .*convert"):
        attend(Q, K, V, **variances(operator), **{name: BROUGHT[name]})


def test_other_names_are_still_unknown():
    with pytest.raises(TypeError, match="unexpected keyword argument 'lamda'"):
        bistoch.elastic_attention(Q, K, V, lamda=0.5)


def test_the_functions_can_be_pickled():
    assert pickle.loads(pickle.dumps(bistoch.elastic_attention)) is bistoch.elastic_attention
