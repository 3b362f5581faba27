"""Train a model: one loop, its schedule, its checkpoints, its evaluation."""
