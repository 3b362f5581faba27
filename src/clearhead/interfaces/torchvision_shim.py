"""Make torchvision importable with a torch build that its compiled operators were not built for.

torchvision's wheels link the CUDA libraries. With a CPU build of torch their operators do not load, and the import
fails at the first operator it describes (pytorch/vision issues 9077 and 9085); timm and transformers fail with
it. Declaring the two operators lets the import pass; calling them still fails, and nothing here calls them.
"""

import importlib
import sys
from functools import cache

import torch


@cache
def ensure_torchvision() -> torch.library.Library | None:
    """Import torchvision, declaring its missing operators if that is what stops it. Nothing happens where it works.

    It changes what this process imports, so programs call it, never `import clearhead`. Returns the library that holds
    the declarations, which live as long as it does.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    else:
        return None
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]
    importlib.import_module("torchvision")
    return library
