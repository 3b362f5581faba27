# The one list of public names. `__init__.py` reads it, and imports each at first use.
from clearhead_lab.robustness.attacks import fgsm as fgsm
from clearhead_lab.robustness.attacks import pgd as pgd
from clearhead_lab.robustness.attacks import spsa as spsa
from clearhead_lab.robustness.classifier import PixelClassifier as PixelClassifier
from clearhead_lab.robustness.corruptions import sweep as sweep
from clearhead_lab.robustness.evaluation import attack as attack
from clearhead_lab.robustness.imagenet_c import IMAGENET_C as IMAGENET_C
from clearhead_lab.robustness.metrics import mean_corruption_error as mean_corruption_error
from clearhead_lab.robustness.record import Robustness as Robustness
from clearhead_lab.robustness.suites import Attack as Attack
from clearhead_lab.training.loop import train as train

__version__: str
