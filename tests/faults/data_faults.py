"""Planted bugs in the readers of images and text."""

from fault import Fault

HERE = "tests/data"
IMAGES, DECODING = f"{HERE}/test_image_sets.py", f"{HERE}/test_decoding.py"
SETS_FILE, CIFAR_FILE, DECODING_FILE = "data/image_sets.py", "data/cifar.py", "data/decoding.py"

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
)  # fmt: skip
