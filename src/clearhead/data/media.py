"""Images and sound from folders, one file per input, in the order of their names."""

import io
import math
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.data.decoding import open_image
from clearhead.data.readers import Reader
from clearhead.errors import InputError
from clearhead.storage import MAX_INPUT_BYTES, open_file, read_bytes

__all__ = [
    "AUDIO",
    "AUDIO_SUFFIXES",
    "IMAGES",
    "IMAGE_SUFFIXES",
    "list_files",
    "media_batches",
    "read_audio",
    "read_image",
]

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
AUDIO_SUFFIXES = (".flac", ".ogg", ".wav")
MIN_RATE, MAX_RATE = 100, 768_000
"""Samples per second of a file."""
MAX_SAMPLES = 2**27
"""Of a file, as stored and at the rate of the model."""
_PCM = {1: "u1", 2: "<i2", 4: "<i4"}


def list_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of a folder and its subfolders with these endings. Raise InputError if there is none."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give a folder of files ending in {', '.join(suffixes)}")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    if not files:
        raise InputError(f"{folder} has no files ending in {', '.join(suffixes)}")
    return files


def read_image(path: Path) -> Any:
    """Return an image with three channels, as Pillow reads it."""
    return open_image(path).convert("RGB")


def read_audio(path: Path, rate: int) -> NDArray[np.float32]:
    """Return the mean of a file's channels as numbers from -1 to 1, at `rate` samples per second.

    WAV files of 8, 16, 24 or 32 bits are read by Python itself, other files by soundfile.
    """
    try:
        samples, own = _read_wav(path) if path.suffix.lower() == ".wav" else _read_soundfile(path)
    except wave.Error:  # such as floating point
        samples, own = _read_soundfile(path)
    except InputError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read the sound {path}: {error or 'it ends early'}; remove it or convert it") from None
    if not len(samples):
        raise InputError(f"{path} holds no sound; remove it")
    if not MIN_RATE <= own <= MAX_RATE or len(samples) * rate > MAX_SAMPLES * own:
        raise InputError(
            f"cannot read the sound {path}: it has {own:,} samples per second, and {len(samples):,} in all; expected "
            f"{MIN_RATE:,} to {MAX_RATE:,} and at most {MAX_SAMPLES:,}: remove it or convert it"
        )
    mono = samples.mean(axis=1)
    if own != rate:
        from scipy.signal import resample_poly

        common = math.gcd(own, rate)
        mono = resample_poly(mono, rate // common, own // common)
    return np.asarray(mono, dtype=np.float32)


IMAGES = Reader(kind="images", endings=IMAGE_SUFFIXES, read=read_image)
AUDIO = Reader(kind="audio", endings=AUDIO_SUFFIXES, read=read_audio)


def media_batches(
    files: Sequence[Path],
    read: Callable[[Path], Any],
    encode: Callable[[Sequence[Any]], Mapping[str, Any]],
    *,
    batch_size: int,
) -> Iterator[dict[str, Any]]:
    """Read and encode `batch_size` files at a time, lazily."""
    for first in range(0, len(files), batch_size):
        yield dict(encode([read(path) for path in files[first : first + batch_size]]))


def _read_wav(path: Path) -> tuple[NDArray[np.float64], int]:
    """Return samples by channel, and their rate."""
    with open_file(path, max_bytes=MAX_INPUT_BYTES) as stream, wave.open(stream, "rb") as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        if width not in (*_PCM, 3):
            raise ValueError(f"it has {8 * width} bits per sample; convert it to 16")
        content = file.readframes(min(file.getnframes(), MAX_INPUT_BYTES))
    if width == 3:  # as the upper bytes of 32 bits
        triples = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3)
        content, width = np.pad(triples, ((0, 0), (1, 0))).tobytes(), 4
    numbers = np.frombuffer(content, dtype=_PCM[width]).astype(np.float64)
    numbers = (numbers - 128) / 128 if width == 1 else numbers / 2.0 ** (8 * width - 1)
    return numbers[: len(numbers) // channels * channels].reshape(-1, channels), rate


def _read_soundfile(path: Path) -> tuple[NDArray[np.float64], int]:
    try:
        import soundfile
    except ImportError:
        raise InputError(
            f"{path} is not a WAV file of whole numbers; convert it, or pip install 'clearhead[audio]'"
        ) from None
    try:
        # From memory: soundfile prints the traceback of an error in a file that Python reads.
        with soundfile.SoundFile(io.BytesIO(read_bytes(path, max_bytes=MAX_INPUT_BYTES))) as file:
            if file.frames * file.channels > MAX_SAMPLES:
                raise RuntimeError(f"it has more than {MAX_SAMPLES:,} samples")
            samples, rate = file.read(always_2d=True), file.samplerate
    except (RuntimeError, OSError) as error:
        reason = getattr(error, "error_string", error)
        raise InputError(f"cannot read the sound {path}: {reason}; remove it or convert it") from None
    return samples, int(rate)
