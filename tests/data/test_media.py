"""Images and sound from files."""

import os
import wave
from pathlib import Path

import numpy as np
import pytest

from clearhead.data.media import AUDIO_SUFFIXES, IMAGE_SUFFIXES, list_files, read_audio, read_image
from clearhead.errors import InputError

RATE = 800


def write_wav(path: Path, samples: np.ndarray, *, rate: int = RATE, width: int = 2) -> None:
    """Write samples (n, channels) from -1 to 1 as whole numbers of `width` bytes."""
    numbers = np.round(samples * (2.0 ** (8 * width - 1) - 1)).astype(np.int64)
    content = (
        (numbers + 128).astype(np.uint8).tobytes()
        if width == 1
        else b"".join(int(number).to_bytes(width, "little", signed=True) for number in numbers.ravel())
    )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(content)


def tone(seconds: float, *, hertz: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_whole_numbers_of_every_width_are_read(tmp_path: Path, width: int) -> None:
    left, right = tone(0.1, hertz=50), tone(0.1, hertz=110)
    write_wav(tmp_path / "a.wav", np.stack([left, right], axis=1), width=width)
    read = read_audio(tmp_path / "a.wav", RATE)
    assert read.dtype == np.float32
    # Rounding to whole numbers, a scale of 127 or 128, and single precision.
    np.testing.assert_allclose(read, (left + right) / 2, atol=max(2.0 ** (2 - 8 * width), 1e-6))


def test_sound_is_resampled(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", tone(1, hertz=20, rate=1200)[:, None], rate=1200)
    read = read_audio(tmp_path / "a.wav", RATE)
    assert len(read) == RATE
    inner = slice(100, -100)  # the filter sees zeros beyond the ends
    np.testing.assert_allclose(read[inner], tone(1, hertz=20)[inner], atol=0.01)
    assert np.abs(read[inner] - tone(1, hertz=30)[inner]).max() > 0.5


def test_files_are_listed_in_order(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("b.PNG", "a.jpg", "notes.txt", "folder/c.webp", "d.wav"):
        (tmp_path / name).write_bytes(b"")
    names = [str(path.relative_to(tmp_path)) for path in list_files(tmp_path, IMAGE_SUFFIXES)]
    assert names == ["a.jpg", "b.PNG", "folder/c.webp"]
    with pytest.raises(InputError, match=r"has no files ending in \.flac, \.ogg, \.wav"):
        list_files(tmp_path / "folder", AUDIO_SUFFIXES)
    with pytest.raises(InputError, match="there is no folder"):
        list_files(tmp_path / "missing", AUDIO_SUFFIXES)


def test_an_image_has_three_channels(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "grey.png")
    assert np.asarray(read_image(tmp_path / "grey.png")).shape == (3, 4, 3)


@pytest.mark.parametrize("name", ["a.png", "a.wav", "a.flac"])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"RIFF\x00\x00")
    read = read_image if name.endswith("png") else lambda path: read_audio(path, RATE)
    with pytest.raises(InputError, match=name):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (24, 0, "0 samples per second"), (24, 1, "1 samples per second"), (24, 2**32 - 1, "4,294,967,295 samples"),
        (24, 10**6, "1,000,000 samples"), (34, 64, "64 bits"), (34, 0, "unimplemented format"), (34, 2**15, "bits"),
        (22, 0, "Channel count is zero"),
    ],
)  # fmt: skip
def test_sound_of_impossible_rates_and_widths_is_refused(tmp_path: Path, at: int, value: int, message: str) -> None:
    path = tmp_path / "a.wav"
    write_wav(path, np.zeros((64, 1)))
    content = bytearray(path.read_bytes())
    size = 4 if at == 24 else 2
    content[at : at + size] = value.to_bytes(size, "little")
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.wav") as error:
        read_audio(path, RATE)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_sound_that_grows_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wav(tmp_path / "a.wav", np.zeros((64, 1)))
    monkeypatch.setattr("clearhead.data.media.MAX_SAMPLES", 63)
    with pytest.raises(InputError, match=r"64 in all; expected .* at most 63"):
        read_audio(tmp_path / "a.wav", RATE)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.wav")
    with pytest.raises(InputError, match="not a regular file"):
        read_audio(tmp_path / "a.wav", RATE)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", np.zeros((0, 1)))
    with pytest.raises(InputError, match="holds no sound"):
        read_audio(tmp_path / "a.wav", RATE)
