"""Described layers, and the error for layers without a description."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clearhead._capture import capture
from clearhead.audit.fidelity import FidelityError, check_fidelity
from clearhead.interfaces import INTERFACES, AttentionNotSeenError, AttentionSpec, read_descriptions
from tests.interfaces.zoo import with_large_weights

BATCH, TOKENS, WIDTH, HEADS = 3, 11, 24, 4


class WrittenOutAttention(nn.Module):
    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.temperature = temperature
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            layer(x).reshape(BATCH, TOKENS, HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = self.temperature * q @ k.mT / (WIDTH // HEADS) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(WrittenOutAttention(temperature) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


SPEC = AttentionSpec(module="WrittenOutAttention", q="query", k="key", v="value", out="output", mask="mask")


def _inputs() -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool)
    mask[1, ..., 7:] = False
    return x, mask


def test_without_a_description_the_error_lists_the_tried_interfaces() -> None:
    model = with_large_weights(Model())
    tried = ", ".join(INTERFACES.names())
    message = rf"layers\.0 \(WrittenOutAttention\), layers\.1.*Tried: {tried}.*Describe"
    with pytest.raises(AttentionNotSeenError, match=message), torch.no_grad(), capture(model):
        model(*_inputs())


def test_a_correct_description_works() -> None:
    model = with_large_weights(Model())
    with torch.no_grad():
        fidelity = check_fidelity(model, lambda: model(*_inputs()), describe=[SPEC])
        with capture(model, describe=[SPEC]) as captured:
            model(*_inputs())
    assert [layer.name for layer in fidelity.layers] == ["layers.0", "layers.1"]
    assert torch.equal(captured.heads[1].mask, _inputs()[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": "key", "k": "query"}, "differs from the layer's own output"),
        ({"mask": None}, "differs from the layer's own output"),
        ({"scale": 1.0}, "differs from the layer's own output"),
        ({"causal": True, "mask": None}, "differs from the layer's own output"),
        ({"out": "query"}, "did not run before its output"),
        ({"v": "values"}, "has no child 'values'; its children are query, key, value, output"),
    ],
)
def test_a_wrong_description_raises_an_error(wrong: dict[str, object], message: str) -> None:
    fields = {"module": "WrittenOutAttention", "q": "query", "k": "key", "v": "value", "out": "output", "mask": "mask"}
    model = with_large_weights(Model())
    with pytest.raises((FidelityError, AttentionNotSeenError), match=message), torch.no_grad():
        check_fidelity(model, lambda: model(*_inputs()), describe=[AttentionSpec(**{**fields, **wrong})])


def test_scores_that_do_not_follow_from_the_description_raise_an_error() -> None:
    model = with_large_weights(Model(temperature=1.3))
    with pytest.raises(FidelityError, match="differs from the layer's own output"), torch.no_grad():
        check_fidelity(model, lambda: model(*_inputs()), describe=[SPEC])
    warm = AttentionSpec(
        module="WrittenOutAttention", q="query", k="key", v="value", out="output", mask="mask",
        scale=1.3 / (WIDTH // HEADS) ** 0.5,
    )  # fmt: skip
    with torch.no_grad():
        check_fidelity(model, lambda: model(*_inputs()), describe=[warm])


def test_unseen_modules_can_be_allowed() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.unseen = WrittenOutAttention()
            self.never_run = WrittenOutAttention()

        def forward(self, x: Tensor) -> Tensor:
            return self.unseen(self.seen(x, x, x)[0])

    model = with_large_weights(Mixed()).eval()
    with pytest.raises(AttentionNotSeenError, match="1 attention modules ran unseen, unseen"), torch.no_grad():
        check_fidelity(model, lambda: model(_inputs()[0]))
    with torch.no_grad():
        fidelity = check_fidelity(model, lambda: model(_inputs()[0]), allow_unseen=True)
    assert fidelity.unseen == ("unseen (WrittenOutAttention)",)
    assert [layer.name for layer in fidelity.layers] == ["seen"]


def test_transformers_without_the_interface_are_named_not_skipped() -> None:
    import transformers

    config = transformers.DebertaV2Config(
        vocab_size=67, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=29
    )
    model = transformers.DebertaV2Model(config).eval()
    with pytest.raises(AttentionNotSeenError, match="DisentangledSelfAttention"), torch.no_grad(), capture(model):
        model(torch.randint(5, 60, (2, 7)))


def test_a_model_without_attention_raises_an_error() -> None:
    model = nn.Sequential(nn.Linear(5, 5))
    message = "Sequential has no attention layers Clearhead can see. Tried"
    with pytest.raises(AttentionNotSeenError, match=message), capture(model):
        model(torch.ones(2, 5))


def test_a_model_that_was_not_run_raises_no_error() -> None:
    with capture(nn.Linear(5, 5)) as captured:
        pass
    assert captured.heads == []


def test_compiled_and_scripted_models_are_refused() -> None:
    with pytest.raises(AttentionNotSeenError, match="_orig_mod"), capture(torch.compile(nn.Linear(5, 5))):
        pass
    scripted = torch.jit.trace(nn.Linear(5, 5), torch.ones(2, 5))
    with pytest.raises(AttentionNotSeenError, match="scripted"), capture(scripted):
        pass


def test_descriptions_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "attention.toml"
    file.write_text(
        '[[attention]]\nmodule = "WrittenOutAttention"\n'
        'q = "query"\nk = "key"\nv = "value"\nout = "output"\nmask = "mask"\n'
    )
    assert read_descriptions(file) == [SPEC]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "describes nothing"),
        ("[[attention", "cannot read .* not valid TOML"),
        ('[[attention]]\nmodule = "A"\n', "needs module, q, k, v"),
        ('[[attention]]\nmodule = "A"\nq = "q"\nk = "k"\nv = "v"\nvalues = "v"\n', "needs module, q, k, v; it takes"),
    ],
)
def test_invalid_description_files_raise_an_error(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "attention.toml"
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_descriptions(file)


def test_a_missing_description_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the description"):
        read_descriptions(tmp_path / "none.toml")
