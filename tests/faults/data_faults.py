"""Planted bugs in the readers of images and text."""

from fault import Fault

HERE = "tests/data"
IMAGES, DECODING, CORPUS = (f"{HERE}/test_{name}.py" for name in ("image_sets", "decoding", "corpus"))
SETS_FILE, CIFAR_FILE, DECODING_FILE = "data/image_sets.py", "data/cifar.py", "data/decoding.py"
CORPUS_FILE, PARQUET_FILE = "data/corpus.py", "data/parquet.py"

DATA_FAULTS = (
    Fault("images: unlimited expansion", SETS_FILE, "file.read(size + 1)", "file.read()[:size]", (IMAGES,)),
    Fault("images: labels cut to integers", SETS_FILE, "if not np.issubdtype(labels.dtype, np.integer):", "if False:", (IMAGES,)),
    Fault("images: negative labels", SETS_FILE, "if labels.ndim != 1 or int(labels.min()) < 0:", "if labels.ndim != 1:", (IMAGES,)),
    Fault("images: any class", SETS_FILE, "if self.classes > len(self.train_images):", "if False:", (IMAGES,)),
    Fault("cifar: PNG channels as rows", CIFAR_FILE, "view(-1, SIDE, SIDE, 3)\n    return rows.permute(0, 3, 1, 2)", "view(-1, 3, SIDE, SIDE)\n    return rows", (IMAGES,)),
    Fault("cifar: transposed", CIFAR_FILE, "rows.permute(0, 3, 1, 2)", "rows.permute(0, 3, 2, 1)", (IMAGES,)),
    Fault("cifar: any label", CIFAR_FILE, "if highest >= CLASSES:", "if False:", (IMAGES,)),
    Fault("cifar: a half-copied file", CIFAR_FILE, "if len(set(sizes)) > 1:", "if False:", (IMAGES,)),
    Fault("decoding: transposed", DECODING_FILE, ".permute(2, 0, 1)", ".permute(2, 1, 0)", (DECODING,)),
    Fault("decoding: masks as colours", DECODING_FILE, 'MASK_MODES = ("L", "P", "1")', 'MASK_MODES = ("L", "P", "1", "RGB")', (DECODING,)),
    Fault("decoding: damage not recognised", DECODING_FILE, "(OSError, ValueError, SyntaxError)", "(OSError,)", (DECODING,)),
    Fault("corpus: no ends of lines", CORPUS_FILE, 'text.replace("\\n", f" {EOS} ").split()', "text.split()", (CORPUS,)),
    Fault("corpus: vocabulary of the test split", CORPUS_FILE, "numbers.default_factory = None", "[_encode([*texts[split]], numbers.__getitem__) for split in ('test',)]", (CORPUS,)),
    Fault("corpus: order of appearance", CORPUS_FILE, "np.argsort(-np.bincount(", "np.argsort(0 * np.bincount(", (CORPUS,)),
    Fault("corpus: ids not renumbered", CORPUS_FILE, "torch.from_numpy(rank[train])", "torch.from_numpy(train.copy())", (CORPUS,)),
    Fault("corpus: an empty last row is a line", CORPUS_FILE, "if last or (last is not None and with_ends):", "if last is not None:", (CORPUS,)),
    Fault("corpus: no empty last line", CORPUS_FILE, "if last or (last is not None and with_ends):", "if last:", (CORPUS,)),
    Fault("corpus: rows of every split", CORPUS_FILE, "if name in splits]", "if True]", (CORPUS,)),
    Fault("corpus: half copied", CORPUS_FILE, 'if path.name.startswith("wiki."):', "if False:", (CORPUS,)),
    Fault("corpus: fingerprint of the words", CORPUS_FILE, "digest.update(ids.numpy().data)", "pass", (CORPUS,)),
    Fault("corpus: fingerprint of the ids", CORPUS_FILE, 'hashlib.sha256("\\n".join(self.vocabulary).encode())', "hashlib.sha256()", (CORPUS,)),
    Fault("parquet: damage not recognised", PARQUET_FILE, "except (OSError, ValueError, KeyError, NotImplementedError)", "except (KeyError, NotImplementedError)", (CORPUS,)),
)  # fmt: skip
