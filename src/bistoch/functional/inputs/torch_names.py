"""Arguments that users bring from torch's attention: what they are called here, or what to do."""

from typing import Any

# values of torch's arguments that ask for nothing
HARMLESS = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "enable_gqa": False,
    "key_padding_mask": None,
    "need_weights": False,
}
_PACKED = "pad the sequences, and say which tokens are real with query_mask and key_mask"
REMEDIES = {
    "attn_mask": (
        "it is called mask here, with the same meaning; where it hides padding, say that with "
        "query_mask and key_mask (True = real)"
    ),
    "dropout_p": (
        "dropping weights would undo their sums; drop entries of the result with "
        "torch.nn.functional.dropout"
    ),
    "is_causal": (
        "a balanced column sums over the future; use causal_elastic_attention, or an operator of "
        "single rows such as softmax_attention with "
        "mask=torch.ones(n, m, dtype=torch.bool).tril()"
    ),
    "enable_gqa": (
        "repeat keys and values with x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)"
    ),
    "key_padding_mask": (
        "pass query_mask=real[:, None] and key_mask=real[:, None], where real = ~key_padding_mask"
    ),
    "need_weights": "the function whose name ends in _plan returns the weights",
    **dict.fromkeys(
        ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_q", "cu_seq_k"), _PACKED
    ),
    **dict.fromkeys(("max_seqlen", "max_seqlen_q", "max_seqlen_k", "max_q", "max_k"), _PACKED),
}


def without_torch_names(function: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call without those of torch's attention that ask for nothing.

    One that asks for something is answered with the way to have it here.

    >>> import torch, bistoch
    >>> q, k, v = torch.randn(3, 2, 5, 4).unbind()
    >>> bistoch.elastic_attention(q, k, v, attn_mask=None, dropout_p=0.0).shape
    torch.Size([2, 5, 4])
    >>> bistoch.elastic_attention(q, k, v, enable_gqa=True)
    Traceback (most recent call last):
    TypeError: elastic_attention: there is no enable_gqa: repeat keys and values with ...
    """
    kept = dict(given)
    for name in sorted(given.keys() & REMEDIES.keys()):
        value = kept.pop(name)
        # a tensor is never a value that asks for nothing, and must not be compared
        asks = not isinstance(value, bool | int | float | None) or name not in HARMLESS
        if asks or value != HARMLESS[name]:
            raise TypeError(
                f"{function}: there is no {name}: {REMEDIES[name]}. In a model that exists, "
                "bistoch.convert does this by itself"
            )
    return kept
