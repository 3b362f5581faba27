"""Training an image classifier: the loop, its checkpoints, augmentation and evaluation."""
