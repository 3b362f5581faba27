"""What can be reproduced."""

from clearhead.errors import InputError
from clearhead.experiments.crate_segmentation import SEGMENTATION
from clearhead.experiments.crate_training import CRATE_DIGITS, CRATE_FASHION
from clearhead.experiments.experiment import Experiment
from clearhead.experiments.model_table import KERNEL_PCA_TABLE, MAX_MARGIN_TABLE
from clearhead.experiments.rate_signs import SIGN_TABLE
from clearhead.experiments.robustness import DIGITS_ROBUSTNESS, ROBUSTNESS, STEP_TIME
from clearhead.experiments.svm_drift import DRIFT
from clearhead.experiments.svm_local import LOCAL_CONVERGENCE
from clearhead.experiments.svm_multi import MULTI_TOKEN
from clearhead.experiments.svm_optimisers import OPTIMISERS
from clearhead.experiments.svm_path import REGULARISATION_PATH
from clearhead.experiments.svm_prompt import PROMPT
from clearhead.experiments.svm_rank import RANK
from clearhead.experiments.svm_training import TRAINING
from clearhead.experiments.svm_trajectories import TRAJECTORIES
from clearhead.experiments.svm_types import CONVERGENCE_TYPE
from clearhead.experiments.vision import DIGITS, FASHION_MNIST

__all__ = ["EXPERIMENTS", "find_experiment"]

EXPERIMENTS = (
    KERNEL_PCA_TABLE,
    FASHION_MNIST,
    DIGITS,
    ROBUSTNESS,
    DIGITS_ROBUSTNESS,
    STEP_TIME,
    MAX_MARGIN_TABLE,
    LOCAL_CONVERGENCE,
    CONVERGENCE_TYPE,
    RANK,
    MULTI_TOKEN,
    TRAJECTORIES,
    PROMPT,
    OPTIMISERS,
    REGULARISATION_PATH,
    DRIFT,
    TRAINING,
    SIGN_TABLE,
    CRATE_FASHION,
    CRATE_DIGITS,
    SEGMENTATION,
)


def find_experiment(name: str) -> Experiment:
    """The experiment of that name."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise InputError(f"no experiment is called {name}; there is {', '.join(e.name for e in EXPERIMENTS)}")
