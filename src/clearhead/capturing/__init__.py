"""Record what a model's attention layers see, and where asked, the gradients of a loss at what they put out."""

from clearhead.capturing.gradients import GradientTape, capture_gradients
from clearhead.capturing.recording import Tape, capture

__all__ = ["GradientTape", "Tape", "capture", "capture_gradients"]
