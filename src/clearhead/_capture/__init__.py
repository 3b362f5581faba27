"""Capture: record attention calls, the linear maps behind q, k and v, the residual stream and gradients."""

from clearhead._capture.gradients import GradientCapture, capture_gradients
from clearhead._capture.recording import Capture, capture

__all__ = ["Capture", "GradientCapture", "capture", "capture_gradients"]
