"""What can be reproduced."""

from clearhead.experiment.experiment import Experiment
from clearhead.experiment.model_table import KERNEL_PCA_TABLE, MAX_MARGIN_TABLE
from clearhead.experiment.robustness import DIGITS_ROBUSTNESS, ROBUSTNESS, STEP_TIME
from clearhead.experiment.svm_local import LOCAL_CONVERGENCE
from clearhead.experiment.vision import DIGITS, FASHION_MNIST

__all__ = ["EXPERIMENTS", "find_experiment"]

EXPERIMENTS = (
    KERNEL_PCA_TABLE,
    MAX_MARGIN_TABLE,
    FASHION_MNIST,
    DIGITS,
    ROBUSTNESS,
    DIGITS_ROBUSTNESS,
    STEP_TIME,
    LOCAL_CONVERGENCE,
)


def find_experiment(name: str) -> Experiment:
    """The experiment of that name."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise ValueError(f"no experiment is called {name}; there is {', '.join(e.name for e in EXPERIMENTS)}")
