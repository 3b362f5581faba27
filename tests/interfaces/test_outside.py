"""Interfaces of other packages: asked first, and Clearhead's own find nothing inside their layers."""

import copy

import pytest
import torch
from torch import Tensor, nn

from clearhead import capture, check_fidelity, swap
from clearhead.errors import InputError
from clearhead.interfaces import INTERFACES, Attachment, Call, Interface, Layer, attach_to, find


class Owning(nn.Module):
    """Attention by a method of its own, next to a module that Clearhead's own interfaces find."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.MultiheadAttention(6, 2)

    def attend(self, x: Tensor) -> Tensor:
        return (x @ x.mT * x.shape[-1] ** -0.5).softmax(dim=-1) @ x

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)


class _Attachment(Attachment):
    def install(self) -> None:
        self.module.attend = self.attend

    def remove(self) -> None:
        del self.module.attend

    def attend(self, x: Tensor) -> Tensor:
        own = type(self.module).attend
        scale = x.shape[-1] ** -0.5
        call = Call(name=self.name, module=self.module, interface=self.interface, q=x, k=x, v=x, scale=scale)
        return self.run(call, lambda: (own(self.module, x),) * 2)[0]


def _find(model: nn.Module) -> list[Layer]:
    return [Layer(path=path, module=part) for path, part in model.named_modules() if isinstance(part, Owning)]


OWNING = Interface(name="owning", find=_find, attach=lambda layer, handler: attach_to(layer, handler, _Attachment))


@pytest.fixture
def owning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the interface for a test."""
    monkeypatch.setattr(INTERFACES, "_registered", {})
    INTERFACES.register("owning", OWNING)


def _model() -> nn.Module:
    return nn.Sequential(Owning(), nn.Linear(6, 6), nn.TransformerEncoderLayer(6, 2, 7, batch_first=True)).eval()


def test_without_the_interface_the_module_inside_is_found() -> None:
    assert [(layer.path, layer.interface) for layer in find(_model())] == [
        ("0.unused", "torch.nn.MultiheadAttention"),
        ("2.self_attn", "torch.nn.MultiheadAttention"),
    ]


@pytest.mark.usefixtures("owning")
def test_with_the_interface_its_layer_is_found_and_nothing_inside() -> None:
    assert [(layer.path, layer.interface) for layer in find(_model())] == [
        ("0", "owning"),
        ("2.self_attn", "torch.nn.MultiheadAttention"),
    ]


@pytest.mark.usefixtures("owning")
def test_its_calls_are_captured_and_swapped() -> None:
    model, x = _model(), torch.randn(3, 2, 5, 6)[:, 0]
    alone = model(x)
    with capture(model) as captured:
        assert torch.equal(model(x), alone)
    assert [heads.interface for heads in captured.heads] == ["owning", "torch.nn.MultiheadAttention"]
    assert {layer.interface for layer in check_fidelity(model, lambda: model(x)).layers} >= {"owning"}
    done = swap(model, lambda q, k, v, *, mask=None, scale=None: 0 * v, layers="0")
    assert not torch.equal(model(x), alone)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    done.undo()
    assert torch.equal(model(x), alone)
    assert "attend" not in vars(model[0])


@pytest.mark.usefixtures("owning")
def test_an_interface_has_the_name_that_it_is_registered_by() -> None:
    with pytest.raises(InputError, match="an Interface with the name other"):
        INTERFACES.register("other", OWNING)
    with pytest.raises(InputError, match="interface owning already"):
        INTERFACES.register("owning", OWNING)


class _Wrong(_Attachment):
    """An interface that returns the output with heads joined, or swaps the axes of heads and tokens."""

    def attend(self, x: Tensor) -> Tensor:
        own = type(self.module).attend(self.module, x)
        q = x[:, None] if self.joined else x[:, :, None]
        call = Call(name=self.name, module=self.module, interface=self.interface, q=q, k=q, v=q, scale=6**-0.5)
        return self.run(call, lambda: (own if self.joined else own[:, :, None], own))[1].model_output


@pytest.mark.parametrize(
    ("joined", "words"),
    [
        (True, r"0 \(wrong\): expected an attention output of shape \(3, 1, 5, 6\), .*; got \(3, 5, 6\)"),
        (False, r"check the scale, the mask and the layout \(b, h, n, d\) of the interface wrong"),
    ],
)
def test_a_wrong_layout_is_an_error_that_names_the_interface(
    joined: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(INTERFACES, "_registered", {})
    monkeypatch.setattr(_Wrong, "joined", joined, raising=False)
    attach = lambda layer, handler: attach_to(layer, handler, _Wrong)  # noqa: E731
    INTERFACES.register("wrong", Interface(name="wrong", find=_find, attach=attach))
    model, x = nn.Sequential(Owning()).eval(), torch.randn(3, 5, 6)
    with pytest.raises(InputError, match=words):
        check_fidelity(model, lambda: model(x))
