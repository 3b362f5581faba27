"""Images and sound reach a model through its own processor; which inputs a model can take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearhead.audit.run import audit
from clearhead.cli.failure import CommandError
from clearhead.cli.inputs import Inputs, find_source, make_inputs
from clearhead.cli.request import AuditRequest
from clearhead.loading.model import LoadedModel, load_model
from clearhead.loading.objects import LoadError
from clearhead_lab.models.native import save_native
from clearhead_lab.models.vit import VisionTransformer, VisionTransformerConfig
from tests.cli.test_commands import OPTIONS
from tests.data.test_media import RATE, tone, write_wav

transformers = pytest.importorskip("transformers")
PATCHES, FRAMES = 16, 40


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=29, image_size=16, patch_size=4
    )
    transformers.ViTModel(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    config = transformers.WhisperConfig(
        vocab_size=67, d_model=24, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=29, decoder_ffn_dim=29, num_mel_bins=8,
        max_source_positions=FRAMES // 2, max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3,
    )  # fmt: skip
    transformers.WhisperModel(config).save_pretrained(folder)
    transformers.WhisperFeatureExtractor(
        feature_size=8, sampling_rate=RATE, hop_length=20, chunk_length=1, n_fft=40
    ).save_pretrained(folder)
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(5):
        pixels = rng.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return tmp_path


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    for number in range(3):
        write_wav(tmp_path / f"{number}.wav", tone(0.4 + number / 2, hertz=40 + 30 * number, rate=RATE)[:, None])
    return tmp_path


def _inputs(folder: Path, **options: Any) -> tuple[LoadedModel, Inputs]:
    request = AuditRequest.of(OPTIONS | {"model": str(folder)} | options, folder / "report")
    loaded = load_model(str(folder), max_tokens=16)
    return loaded, make_inputs(request, loaded, find_source(request))


def test_images_are_prepared_by_the_models_processor(vision: Path, images: Path) -> None:
    loaded, inputs = _inputs(vision, images=images, inputs=3)
    batches = list(inputs.batches)
    assert [tuple(batch["pixel_values"].shape) for batch in batches] == [(2, 3, 16, 16), (1, 3, 16, 16)]
    assert (inputs.count, inputs.name) == (3, str(images))
    own = transformers.AutoImageProcessor.from_pretrained(vision, backend="pil")
    opened = pytest.importorskip("PIL.Image").open(images / "0.png")
    expected = own(images=[opened], return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(batches[0]["pixel_values"][0], expected, rtol=0, atol=0)
    with torch.no_grad():
        assert loaded.model(**batches[0]).last_hidden_state.shape == (2, PATCHES + 1, 24)


def test_the_checksum_is_that_of_the_files(vision: Path, images: Path) -> None:
    _, before = _inputs(vision, images=images)
    assert _inputs(vision, images=images)[1].checksum == before.checksum
    (images / "0.png").write_bytes((images / "1.png").read_bytes())
    assert _inputs(vision, images=images)[1].checksum != before.checksum


def test_tokens_of_images_and_of_plain_tensors_are_counted(vision: Path, images: Path) -> None:
    loaded, inputs = _inputs(vision, images=images)
    record = audit(loaded.model, inputs.batches, theories=["symmetry"])
    assert (record.inputs, record.tokens) == (5, 5 * (PATCHES + 1))
    tensors = [batch["pixel_values"] for batch in inputs.batches]
    record = audit(loaded.model, tensors, theories=["symmetry"])
    assert (record.inputs, record.tokens) == (5, 5 * (PATCHES + 1))


@pytest.mark.filterwarnings("ignore:At least one mel filter")  # of an extractor this small
def test_sound_is_audited_and_its_tokens_are_counted(whisper: Path, sounds: Path) -> None:
    loaded, inputs = _inputs(whisper, audio=sounds)
    batches = list(inputs.batches)
    assert [tuple(batch["input_features"].shape) for batch in batches] == [(2, 8, FRAMES), (1, 8, FRAMES)]
    assert batches[1]["decoder_input_ids"].tolist() == [[3]]
    record = audit(loaded.model, batches, theories=["kernel-pca"])
    assert (record.inputs, record.tokens) == (3, 3 * FRAMES // 2)
    measured = {f.layer for f in record.findings if f.inputs}
    assert measured >= {0, 1}  # the encoder; the decoder has one token
    with_mask = [{**batch, "attention_mask": torch.ones(len(batch["input_features"]), FRAMES)} for batch in batches]
    assert audit(loaded.model, with_mask, theories=["kernel-pca"]).tokens == record.tokens


def test_waveforms_are_padded_to_the_longest(tmp_path: Path, sounds: Path) -> None:
    config = transformers.Wav2Vec2Config(
        vocab_size=31, hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=29,
        conv_dim=(8,), conv_stride=(10,), conv_kernel=(10,), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    transformers.Wav2Vec2Model(config).save_pretrained(tmp_path / "model")
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained(tmp_path / "model")
    _, inputs = _inputs(tmp_path / "model", audio=sounds)
    assert [tuple(batch["input_values"].shape) for batch in inputs.batches] == [(2, 720), (1, 1120)]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_model_of_clearhead_reads_images_of_its_size(images: Path, tmp_path: Path, channels: int) -> None:
    config = VisionTransformerConfig(
        image_size=8, patch_size=4, channels=channels, classes=3, width=12, layers=1, heads=2, mlp_width=13
    )
    save_native(VisionTransformer(config, generator=torch.Generator().manual_seed(0)), tmp_path / "model")
    loaded, inputs = _inputs(tmp_path / "model", images=images)
    first = next(iter(inputs.batches))["images"]
    assert first.shape == (2, channels, 8, 8)
    with pytest.importorskip("PIL.Image").open(images / "0.png") as opened:
        pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB").resize((8, 8))).reshape(8, 8, channels)
    np.testing.assert_array_equal(first[0], np.float32(pixels.transpose(2, 0, 1)) / np.float32(255))
    assert audit(loaded.model, inputs.batches, theories=["symmetry"]).tokens == 5 * 5
    write_wav(images / "a.wav", tone(0.2, hertz=50)[:, None])
    with pytest.raises(LoadError, match=r"images, not sound.*--images"):
        list(_inputs(tmp_path / "model", audio=images)[1].batches)


def test_a_processor_may_come_from_a_function(
    vision: Path, images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "made_here.py").write_text(
        "import transformers\ndef pair():\n"
        f"    return (transformers.ViTModel.from_pretrained({str(vision)!r}),\n"
        f"        transformers.AutoImageProcessor.from_pretrained({str(vision)!r}, backend='pil'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_model("made_here:pair", max_tokens=16)
    _, from_folder = _inputs(vision, images=images)
    request = AuditRequest.of(OPTIONS | {"model": "made_here:pair", "images": images}, tmp_path / "report")
    made = make_inputs(request, loaded, find_source(request))
    for a, b in zip(made.batches, from_folder.batches, strict=True):
        torch.testing.assert_close(a["pixel_values"], b["pixel_values"], rtol=0, atol=0)


def test_errors_say_what_to_give_instead(vision: Path, whisper: Path, images: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--text and --images"):
        _inputs(vision, images=images, text=images)
    with pytest.raises(CommandError, match=r"--column.*--text"):
        _inputs(vision, images=images, column="x")
    with pytest.raises(CommandError, match=r"no tokenizer.*--images, --audio or --batches"):
        _inputs(vision)
    (tmp_path / "bare").mkdir()
    for file in vision.iterdir():
        if file.name != "preprocessor_config.json":
            (tmp_path / "bare" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CommandError, match=r"no processor.*--images.*--batches"):
        _inputs(tmp_path / "bare", images=images)
    with pytest.raises(LoadError, match=r"no processor for images .*--batches"):
        list(_inputs(whisper, images=images)[1].batches)
    write_wav(images / "a.wav", tone(0.2, hertz=50)[:, None])
    with pytest.raises(LoadError, match=r"sampling rate|processor for sound"):
        list(_inputs(vision, audio=images)[1].batches)


def test_a_processor_that_asks_for_huge_images_is_refused(vision: Path, images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    folder.mkdir()
    for file in vision.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = folder / "preprocessor_config.json"
    config.write_text(config.read_text().replace('"height": 16', '"height": 1600000'))
    with pytest.raises(LoadError, match=r"height .*1,600,000.* 8,192"):
        list(_inputs(folder, images=images)[1].batches)
