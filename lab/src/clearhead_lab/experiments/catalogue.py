"""The experiments that can be reproduced."""

from clearhead.errors import InputError
from clearhead_lab.experiments.crate.sign_table import SIGN_TABLE
from clearhead_lab.experiments.crate.training import CRATE_DIGITS, CRATE_FASHION
from clearhead_lab.experiments.experiment import Experiment
from clearhead_lab.experiments.kernel_pca.classification import CLASSIFICATION
from clearhead_lab.experiments.kernel_pca.cost import COST
from clearhead_lab.experiments.kernel_pca.eigenvectors import EIGENVECTORS
from clearhead_lab.experiments.kernel_pca.language import LANGUAGE
from clearhead_lab.experiments.kernel_pca.projection_loss import PROJECTION_LOSS
from clearhead_lab.experiments.kernel_pca.robustness import VARIANT_ROBUSTNESS
from clearhead_lab.experiments.kernel_pca.scaled_training import SCALED_TRAINING
from clearhead_lab.experiments.kernel_pca.segmentation import SEGMENTER
from clearhead_lab.experiments.models.claim_tables import KERNEL_PCA_TABLE, MAX_MARGIN_TABLE
from clearhead_lab.experiments.models.linear_map import LINEAR_MAP
from clearhead_lab.experiments.models.sceptr_table import SCEPTR_TABLE
from clearhead_lab.experiments.models.vision import DIGITS, FASHION_MNIST
from clearhead_lab.experiments.svm.convergence_type import CONVERGENCE_TYPE
from clearhead_lab.experiments.svm.drift import DRIFT
from clearhead_lab.experiments.svm.local_convergence import LOCAL_CONVERGENCE
from clearhead_lab.experiments.svm.multi_token import MULTI_TOKEN
from clearhead_lab.experiments.svm.optimisers import OPTIMISERS
from clearhead_lab.experiments.svm.prompt import PROMPT
from clearhead_lab.experiments.svm.rank import RANK
from clearhead_lab.experiments.svm.regularisation_path import REGULARISATION_PATH
from clearhead_lab.experiments.svm.training import TRAINING
from clearhead_lab.experiments.svm.trajectories import TRAJECTORIES

EXPERIMENTS = (
    PROJECTION_LOSS,
    EIGENVECTORS,
    CLASSIFICATION,
    VARIANT_ROBUSTNESS,
    LANGUAGE,
    SEGMENTER,
    SCALED_TRAINING,
    COST,
    KERNEL_PCA_TABLE,
    LINEAR_MAP,
    FASHION_MNIST,
    DIGITS,
    MAX_MARGIN_TABLE,
    SCEPTR_TABLE,
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
)


def find_experiment(name: str) -> Experiment:
    """Return the experiment with this name."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    raise InputError(f"there is no experiment {name}; choose one of {', '.join(e.name for e in EXPERIMENTS)}")
