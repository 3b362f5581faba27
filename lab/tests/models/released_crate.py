"""CRATE as in its released code, with the parameter names of its files."""

import torch
from torch import Tensor, nn


class Released(nn.Module):
    """A model of normalised images."""

    def __init__(self, *, size: int, patch: int, channels: int, classes: int, width: int, depth: int, heads: int):
        super().__init__()
        self.patch, self.heads, self.step, self.penalty = patch, heads, 0.1, 0.1
        pixels, tokens = channels * patch**2, (size // patch) ** 2 + 1
        self.to_patch_embedding = nn.Sequential(
            nn.Identity(), nn.LayerNorm(pixels), nn.Linear(pixels, width), nn.LayerNorm(width)
        )
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width))
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(
            nn.ModuleList([_normed(width, _attention(width)), _normed(width, _dictionary(width))]) for _ in range(depth)
        )
        self.mlp_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        b, p = len(images), self.patch
        cut = [
            images[:, :, y : y + p, x : x + p].permute(0, 2, 3, 1).reshape(b, -1)  # (row, column, channel)
            for y in range(0, images.shape[2], p)
            for x in range(0, images.shape[3], p)
        ]
        z = self.to_patch_embedding(torch.stack(cut, dim=1))
        z = torch.cat([self.cls_token.expand(b, 1, -1), z], dim=1) + self.pos_embedding
        for attention, sparse in self.transformer.layers:
            z = z + self._attended(attention.norm(z), attention.fn)
            z = self._codes(sparse.norm(z), sparse.fn.weight)
        return self.mlp_head(z[:, 0])

    def _attended(self, z: Tensor, fn: nn.Module) -> Tensor:
        heads = []
        for w in fn.qkv(z).chunk(self.heads, dim=-1):
            weights = torch.softmax(w @ w.mT / w.shape[-1] ** 0.5, dim=-1)
            heads.append(weights @ w)
        return fn.to_out(torch.cat(heads, dim=-1))

    def _codes(self, z: Tensor, D: Tensor) -> Tensor:
        towards = torch.einsum("da,bnd->bna", D, z - torch.einsum("da,bna->bnd", D, z))
        return (z + self.step * towards - self.step * self.penalty).clamp_min(0)


def _normed(width: int, fn: nn.Module) -> nn.Module:
    part = nn.Module()
    part.norm, part.fn = nn.LayerNorm(width), fn
    return part


def _attention(width: int) -> nn.Module:
    part = nn.Module()
    part.qkv, part.to_out = nn.Linear(width, width, bias=False), nn.Sequential(nn.Linear(width, width), nn.Identity())
    return part


def _dictionary(width: int) -> nn.Module:
    part = nn.Module()
    part.weight = nn.Parameter(torch.empty(width, width))
    return part


def randomised(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Return the model with random parameters, norms near one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 1.0
            parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
        for part in model.modules():
            if isinstance(part, nn.LayerNorm):
                part.weight.mul_(0.3).add_(1)
    return model.eval()
