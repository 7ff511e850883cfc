"""Records, state dicts and files of converted models."""

import json

import pytest
import torch
from torch import nn

import bistoch
from foreign_layers import Own


def build():
    return nn.Sequential(Own(), nn.MultiheadAttention(12, 2), bistoch.nn.Attention(12, 3))


def converted():
    model = bistoch.convert(build(), "elastic(iters=5)", layers=[0], lam=[0.1, 0.2, 0.3])
    bistoch.convert(model, "elastic", layers=[1], heads=[1], lam=0.7)
    return bistoch.convert(model, "lowrank", layers=[2], heads=[0, 2])


@pytest.mark.parametrize("name", ["lam.json", "lam.safetensors"])
def test_a_file_beside_the_weights(tmp_path, name):
    model = converted()
    path = bistoch.convert.save(model, tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    again = bistoch.convert.load(build(), path)
    assert bistoch.convert.record(again) == bistoch.convert.record(model)
    ours = {n: x for n, x in model.state_dict().items() if "bistoch" in n or ".operator." in n}
    theirs = again.state_dict()
    assert len(ours) > 2
    for key, tensor in ours.items():
        assert torch.equal(theirs[key], tensor)
    # the same file again, into what is converted so already, keeps the parameters themselves
    before = again[0].bistoch.operator.lam
    with torch.no_grad():
        before.zero_()
    assert bistoch.convert.load(again, path)[0].bistoch.operator.lam is before
    assert before.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_a_state_dict_loads_into_a_model_that_was_converted_alike():
    model = converted()
    fresh = bistoch.convert.apply(build(), json.loads(json.dumps(bistoch.convert.record(model))))
    assert str(fresh.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    x = torch.randn(2, 7, 12)
    assert torch.equal(fresh[0](x), model[0](x))
    plain = build().load_state_dict(model.state_dict(), strict=False)
    assert "0.bistoch.operator.lam" in plain.unexpected_keys


def test_files_that_do_not_fit_say_why(tmp_path):
    path = bistoch.convert.save(converted(), tmp_path / "lam.json")
    with pytest.raises(ValueError, match="of a Sequential with an attention layer '1', which this"):
        bistoch.convert.load(nn.Sequential(Own(), nn.Linear(2, 2)), path)
    with pytest.raises(ValueError, match="'0' had 3 heads when the record was saved, but has 4"):
        bistoch.convert.load(nn.Sequential(Own(heads=4), *build()[1:]), path)
    other = bistoch.convert(build(), "sinkhorn")
    with pytest.raises(ValueError, match=r"in another way than the record says; call bistoch.rest"):
        bistoch.convert.load(other, path)
    fresh = build()
    saved = json.loads(path.read_text())
    saved["learned"]["0.bistoch.operator.lam"]["values"] = [0.0, 0.0]
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r"lam has the shape \(2,\) in .*, but \(3,\) in this"):
        bistoch.convert.load(fresh, path)
    saved["format"] = 99
    path.write_text(json.dumps(saved))
    with pytest.raises(ValueError, match="has the format 99, but this bistoch reads 1"):
        bistoch.convert.load(build(), path)
    for content in ("{}", "no json", '{"layers": 3}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"was not written by bistoch.convert.save"):
            bistoch.convert.load(build(), path)
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"was not written by bistoch.convert.save"):
        bistoch.convert.load(build(), tmp_path / "x.safetensors")


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="this Sequential was not converted"):
        bistoch.convert.save(build(), tmp_path / "lam.json")
    with pytest.raises(ValueError, match=r"must end in .json or .safetensors"):
        bistoch.convert.save(converted(), tmp_path / "lam.pt")
    assert not list(tmp_path.iterdir())
