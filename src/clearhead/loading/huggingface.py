"""Models and tokenizers from a Hugging Face folder. Nothing is downloaded, and no code of the folder runs.

Weights come from safetensors or from pickles that torch reads with weights_only.
"""

import contextlib
import copy
import functools
import importlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.loading.encoding import Decode, Encode, make_encoder
from clearhead.loading.folder_checks import check_folder, check_size, check_tokenizer, read_weights
from clearhead.loading.objects import LoadError, first_line
from clearhead.storage import check_checksums

Draw = Callable[[int], nn.Module]
"""Returns a model with fresh random weights, drawn from a seed."""

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
FILES_NEXT_TO_TOKENIZER = ("merges.txt", "special_tokens_map.json", "added_tokens.json")
"""Files that a tokenizer reads, none of which is a tokenizer by itself."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
OPTIONS = {"local_files_only": True, "trust_remote_code": False}


INSTEAD = (
    "if your own code can load it, give package.module:function that returns the model and its tokenizer "
    "(docs/models.md#models-that-do-not-load)"
)
"""The next step for a folder that does not load."""


def load_huggingface(folder: Path, *, classifier: bool = False) -> nn.Module:
    """Return the model of a folder that `save_pretrained` wrote. Raise LoadError if it cannot be loaded safely.

    classifier: with its head for image classification; without, no head is loaded
    """
    check_folder(folder)
    weights = read_weights(folder)
    check_checksums(folder)
    try:
        import transformers
    except ImportError:
        raise LoadError("Hugging Face models need transformers; pip install 'clearhead[hf]'") from None
    with offline(), quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **OPTIONS)
            kind = transformers.AutoModelForImageClassification if classifier else transformers.AutoModel
            check_size(folder, copy.deepcopy(config), weights, kind.from_config)
            return _load_weights(kind, folder, config)
        except LoadError:
            raise
        except pickle.UnpicklingError as error:
            raise LoadError(
                f"the weights in {folder} are a pickle that could run code; save them as safetensors"
            ) from error
        except Exception as error:
            raise LoadError(f"cannot load {folder}: {_cause(error)}; {INSTEAD}") from error


def folder_encoder(folder: Path, model: nn.Module, max_tokens: int) -> tuple[Encode | None, Decode | None]:
    """Return functions that encode passages and decode token ids with the folder's tokenizer.

    It is loaded at the first call. Return None for both if the folder has no tokenizer.
    """
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        return None, None

    @functools.cache
    def tokenizer() -> Any:
        return _load_tokenizer(folder)

    @functools.cache
    def encoder() -> Encode:
        return make_encoder(tokenizer(), model, max_tokens)

    def encode(passages: Sequence[str]) -> Mapping[str, Tensor]:
        return encoder()(passages)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer().decode(ids))

    return encode, decode


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a folder that its tokenizer and processor are read from, in the order of their names."""
    names = (*TOKENIZER_FILES, *FILES_NEXT_TO_TOKENIZER, *PROCESSOR_FILES)
    return [folder / name for name in sorted(names) if (folder / name).is_file()]


def baseline_of(model: nn.Module, name: str) -> Draw:
    """Return a function that draws the baseline: the same model with fresh weights by its family's initialisation.

    Each drawn model has the architecture, the attention implementation and the dtype of the model and is in evaluation
    mode. Equal seeds give equal weights. The global random state and the model's configuration do not change.
    """
    config, kind, dtype = copy.deepcopy(model.config), type(model), next(model.parameters()).dtype

    def draw(seed: int) -> nn.Module:
        transformers: Any = importlib.import_module("transformers")
        with offline(), quiet(transformers), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                drawn: nn.Module = kind(copy.deepcopy(config))
            except Exception as error:
                raise LoadError(f"cannot draw fresh weights for {name}: {first_line(error)}") from error
        return drawn.to(dtype).eval()

    return draw


def _load_weights(kind: Any, folder: Path, config: Any) -> nn.Module:
    safe = any(folder.glob("*.safetensors"))
    for attention in ("sdpa", "eager"):
        try:
            model, report = kind.from_pretrained(
                folder,
                config=config,
                attn_implementation=attention,
                use_safetensors=safe,
                output_loading_info=True,
                **({} if safe else {"weights_only": True}),
                **OPTIONS,
            )
        except ValueError as error:
            if attention == "sdpa" and "scaled_dot_product_attention" in str(error):
                continue
            raise
        break
    # Models of sentences are often saved without their pooler, which no attention depends on.
    missing = [key for key in sorted(report.get("missing_keys", ())) if "pooler" not in key]
    if missing:
        raise LoadError(
            f"{folder} lacks {len(missing)} of the model's weights, the first is {missing[0]}; "
            "they would be random numbers"
        )
    return model  # type: ignore[no-any-return]


def _load_tokenizer(folder: Path) -> Any:
    transformers: Any = importlib.import_module("transformers")
    try:
        check_tokenizer(folder)
        with offline(), quiet(transformers):
            return transformers.AutoTokenizer.from_pretrained(folder, **OPTIONS)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the tokenizers library panics with an exception that is not an Exception
        raise LoadError(f"cannot load the tokenizer of {folder}: {first_line(error)}") from error


def _cause(error: BaseException) -> str:
    """Return the first line of an error, or a known cause: a torchvision that does not fit, a missing download."""
    chain: BaseException | None = error
    while chain is not None:
        if "torchvision::" in str(chain):
            return "torchvision does not fit this torch; uninstall it, or install the one that does"
        if type(chain).__name__ == "OfflineModeIsEnabled":
            return "it needs more than the folder holds, and nothing is downloaded; does config.json name a backbone?"
        chain = chain.__cause__ or chain.__context__
    return first_line(error)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Keep transformers off the network in any environment: local_files_only does not cover a backbone."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Suppress progress bars, log messages and warnings of transformers."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
