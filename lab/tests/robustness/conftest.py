"""A small classifier trained on the digits, shared by the tests."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clearhead_lab.data.image_sets import digits


class Network(nn.Module):
    """Two layers with a smooth activation."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.hidden, self.head = nn.Linear(64, 48), nn.Linear(48, 10)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2, generator=generator)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(2 * pixels.flatten(1) - 1)))


def train(seed: int) -> Network:
    stored, model = digits(), Network(seed)
    images, labels = stored.train_images.float() / 255, stored.train_labels
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def undefended() -> Network:
    return train(0)


@pytest.fixture(scope="session")
def twin() -> Network:
    return train(1)


@pytest.fixture(scope="session")
def test_digits() -> tuple[Tensor, Tensor]:
    """Return 97 test images with pixels from 0 to 1, and their labels."""
    stored = digits()
    return stored.test_images[:97].float() / 255, stored.test_labels[:97]
