"""Batches from disk: what a row holds does not depend on workers, processes or the start."""

import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.data.decoding import CorruptImageError
from clearhead.errors import InputError
from clearhead_lab.data import batches
from clearhead_lab.data.batches import SampleBatches, all_samples
from clearhead_lab.data.samples import Samples, open_samples
from lab.tests.data.image_files import encoded, pixels_of, write_folder, write_table

N, BATCH = 23, 5


class Numbers:
    """Samples whose image is their index, and which say which indices are corrupt."""

    name, classes = "numbers", N

    def __init__(self, corrupt: tuple[int, ...] = (), number: int = N) -> None:
        self.corrupt, self.number = corrupt, number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.corrupt:
            raise CorruptImageError(f"cannot read the image {index}")
        return torch.full((1, 2, 3), index, dtype=torch.uint8), index

    def order(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randperm(len(self), generator=generator)

    def fingerprint(self) -> str:
        return f"numbers {self.number}"


def _noisy(image: torch.Tensor, target: int | torch.Tensor) -> tuple[torch.Tensor, int | torch.Tensor]:
    """Draw from all three generators that transforms use."""
    return image.float() + torch.rand(()) / 4 + np.random.rand() / 4 + random.random() / 4, target


def _batches(samples: Samples | None = None, **settings) -> SampleBatches:
    return SampleBatches(
        samples or Numbers(), **{"batch_size": BATCH, "seed": 3, "transform": _noisy, "workers": 0, **settings}
    )


def _epoch(data: SampleBatches, number: int = 0, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    images, targets = zip(*data.epoch(number, **settings), strict=True)
    return torch.cat(images), torch.cat(targets)


def test_an_epoch_has_every_sample_at_most_once_and_whole_batches() -> None:
    data = _batches()
    images, targets = _epoch(data)
    assert (data.steps, len(targets), len(set(targets.tolist()))) == (4, 20, 20)
    assert [len(batch) for _, batch in data.epoch(0)] == [BATCH] * 4
    assert torch.equal(images[:, 0, 0, 0].floor().long(), targets)
    assert (images.dtype, targets.dtype) == (torch.float32, torch.int64)


def test_order_and_augmentation_change_with_the_epoch_and_the_seed_only() -> None:
    first, second, other = _epoch(_batches()), _epoch(_batches(), 1), _epoch(_batches(seed=4))
    again = _epoch(_batches())
    assert torch.equal(first[0], again[0])
    for changed in (second, other):
        assert first[1].tolist() != changed[1].tolist()
        noise = [{int(t): float(i.mean() - t) for i, t in zip(*epoch, strict=True)} for epoch in (first, changed)]
        shared = noise[0].keys() & noise[1].keys()
        assert len(shared) >= 10
        assert all(abs(noise[0][t] - noise[1][t]) > 1e-6 for t in shared)


def test_each_sample_draws_its_own_numbers() -> None:
    images, targets = _epoch(_batches())
    noise = (images.mean(dim=(1, 2, 3)) - targets).tolist()
    assert len({round(value, 5) for value in noise}) == 20


@pytest.mark.parametrize(("size", "counts"), [(6, [3, 3]), (7, [2, 2, 3])])
def test_repeats_are_in_one_batch_with_different_augmentations(size: int, counts: list[int]) -> None:
    data, without = _batches(batch_size=size, repeats=3), _batches(batch_size=size)
    assert data.steps == without.steps == 3
    once, epochs = dict[int, float](), []
    for images, targets in without.epoch(1):
        once |= {int(target): float(image.mean()) for image, target in zip(images, targets, strict=True)}
    for number in (1, 2):
        batches_of = list(data.epoch(number))
        samples = [sorted(set(targets.tolist())) for _, targets in batches_of]
        epochs.append(samples)
        assert [len(targets) for _, targets in batches_of] == [size] * 3, "as many rows as without"
        assert len({target for batch in samples for target in batch}) == 3 * len(counts), "in no other batch"
        for images, targets in batches_of:
            assert sorted(Counter(targets.tolist()).values()) == counts
            assert len({float(image.mean()) for image in images}) == size, "every row has an augmentation of its own"
            pairs = zip(targets[: size - 1 : 2].tolist(), targets[1::2].tolist(), strict=True)
            assert all(a != b for a, b in pairs), "mixup mixes different samples"
            if number == 1:  # the first copies are the rows without repeats
                for image, target in list(zip(images, targets, strict=True))[: len(counts)]:
                    assert float(image.mean()) == once.get(int(target), float(image.mean()))
    assert epochs[0] != epochs[1]
    again = _epoch(_batches(batch_size=size, repeats=3), 1)
    assert torch.equal(again[0], _epoch(data, 1)[0])


def test_workers_processes_and_a_later_start_do_not_change_repeated_rows() -> None:
    whole = list(_batches(batch_size=6, repeats=3).epoch(2))
    parts = [
        list(_batches(batch_size=6, repeats=3, workers=workers).epoch(2, start=1, rows=rows))
        for workers, rows in ((0, slice(0, 3)), (1, slice(3, 6)))
    ]
    for step in range(2):
        for field in (0, 1):
            assert torch.equal(torch.cat([part[step][field] for part in parts]), whole[step + 1][field])
    copies = [{int(target) for target in part[0][1]} for part in parts]
    assert copies[0] == copies[1], "processes get copies of the same samples"


def test_repeats_of_a_corrupt_image_are_replaced_by_the_next() -> None:
    targets = _epoch(_batches(Numbers(corrupt=(7,), number=8), batch_size=8, repeats=4, on_corrupt="skip", notice=str))
    assert set(Counter(targets[1].tolist()).values()) == {4}
    assert 7 not in targets[1].tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_rows(workers: int) -> None:
    expected, actual = _epoch(_batches()), _epoch(_batches(workers=workers))
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(actual[1], expected[1])


def test_processes_share_a_batch_and_a_resumed_epoch_has_the_same_rows() -> None:
    data = _batches()
    whole = list(data.epoch(2))
    parts = [list(data.epoch(2, start=1, rows=rows)) for rows in (slice(0, 2), slice(2, 5))]
    assert [len(part) for part in parts] == [3, 3]
    for step in range(3):
        for field in (0, 1):
            joined = torch.cat([part[step][field] for part in parts])
            assert torch.equal(joined, whole[step + 1][field])


def test_the_generators_of_the_process_are_left_alone(typechecked: bool) -> None:
    def draw() -> list[float]:
        # Checking annotations draws from `random` itself.
        return [torch.rand(()).item(), np.random.rand(), 0.0 if typechecked else random.random()]

    for workers in (0, 1):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        expected = draw()
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        _epoch(_batches(workers=workers))
        assert draw() == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_refused_by_name_in_one_line(workers: int) -> None:
    with pytest.raises(CorruptImageError) as error:
        _epoch(_batches(Numbers(corrupt=(7,), number=20), workers=workers))
    assert str(error.value) == "cannot read the image 7"


def test_a_corrupt_image_is_skipped_named_once_and_replaced_by_the_next() -> None:
    notices: list[str] = []
    data = _batches(Numbers(corrupt=(7, 8), number=20), on_corrupt="skip", notice=notices.append)
    for number in (0, 1):
        images, targets = _epoch(data, number)
        assert sorted(targets.tolist()) == sorted([*(set(range(20)) - {7, 8}), 9, 9])
        same = images[targets == 9]
        assert len({float(image.mean()) for image in same}) == 3
    assert sorted(notices) == ["skipped: cannot read the image 7", "skipped: cannot read the image 8"]


def test_rows_of_whole_images_stay_the_same_when_one_is_corrupt() -> None:
    whole = _epoch(_batches(Numbers(number=20)))
    skipped = _epoch(_batches(Numbers(corrupt=(7,), number=20), on_corrupt="skip", notice=str))
    different = (whole[1] != skipped[1]).nonzero().flatten().tolist()
    assert [int(whole[1][i]) for i in different] == [7]
    kept = [i for i in range(20) if i not in different]
    assert torch.equal(whole[0][kept], skipped[0][kept])


def test_a_set_of_corrupt_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "TRIES", 4)
    data = _batches(Numbers(corrupt=(5, 6, 7, 8), number=20), on_corrupt="skip", notice=str)
    with pytest.raises(CorruptImageError, match="4 images of numbers in a row are corrupt, the last: cannot read"):
        _epoch(data)


def test_evaluation_has_every_sample_once_in_order() -> None:
    notices: list[str] = []
    results = list(all_samples(Numbers(), batch_size=BATCH, transform=_noisy))
    assert torch.cat([targets for _, targets in results]).tolist() == list(range(N))
    assert [len(targets) for _, targets in results] == [5, 5, 5, 5, 3]
    skipped = all_samples(
        Numbers(corrupt=(20, 21, 22)), batch_size=BATCH, transform=_noisy, on_corrupt="skip", notice=notices.append
    )
    assert torch.cat([targets for _, targets in skipped]).tolist() == list(range(20))
    assert len(notices) == 3


def test_a_folder_of_a_thousand_with_one_corrupt_image(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a", "b"], each=1)
    for number in range(998):
        (tmp_path / "a" / f"copy_{number}.png").write_bytes(encoded(pixels_of(number, 2, 2)))
    spoiled = tmp_path / "a" / "copy_500.png"
    spoiled.write_bytes(spoiled.read_bytes()[:40])
    for name in ("a/a_0.png", "b/b_0.png"):
        (tmp_path / name).write_bytes(encoded(pixels_of(0, 2, 2)))
    samples = open_samples(tmp_path, split=None)
    assert len(samples) == 1000
    with pytest.raises(CorruptImageError, match=r"cannot read the image .*copy_500\.png: .*; remove it or convert it"):
        _epoch(_batches(samples, batch_size=100))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, targets = _epoch(_batches(samples, batch_size=100, on_corrupt="skip"))
    assert len(targets) == 1000
    assert [str(warning.message).partition(":")[0] for warning in caught] == ["skipped"]
    assert "copy_500.png" in str(caught[0].message)


def test_damage_inside_a_table_is_one_line(tmp_path: Path) -> None:
    columns = {"image": [encoded(pixels_of(i)) for i in range(6)], "label": [0, 1] * 3}
    path = write_table(tmp_path / "a.parquet", columns, group=3)
    samples = open_samples(path, split=None)
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"a\.parquet is damaged or half copied") as error:
        _epoch(_batches(samples, batch_size=6, workers=1))
    assert "\n" not in str(error.value)


def test_impossible_settings_give_one_line() -> None:
    with pytest.raises(InputError, match="the batch size is 24; expected 1 to 23, the number of samples of numbers"):
        _batches(batch_size=24)
    for repeats in (0, 6):
        with pytest.raises(InputError, match=f"expected repeats from 1 to the batch size of 5; got {repeats}"):
            _batches(repeats=repeats)
    mixed = [torch.zeros(3, 2, 2), torch.zeros(3, 2, 4)]
    with pytest.raises(InputError, match=r"images of different sizes, \(3, 2, 2\) and \(3, 2, 4\); resize them"):
        _epoch(_batches(transform=lambda image, target: (mixed[int(target) % 2], target)))


def test_an_unknown_choice_for_corrupt_images_gives_one_line(typechecked: bool) -> None:
    if typechecked:
        pytest.skip("the annotation refuses it first")
    with pytest.raises(InputError, match="on_corrupt is 'ignore'; choose refuse or skip"):
        _batches(on_corrupt="ignore")


def test_the_fingerprint_depends_on_set_size_and_seed() -> None:
    prints = {
        _batches().fingerprint(),
        _batches(seed=4).fingerprint(),
        _batches(batch_size=6).fingerprint(),
        _batches(repeats=2).fingerprint(),
        _batches(Numbers(number=24)).fingerprint(),
    }
    assert len(prints) == 5
    assert _batches().fingerprint() in prints
