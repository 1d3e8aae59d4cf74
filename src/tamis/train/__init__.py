"""Training: the model zoo, the shipped data and the training loop."""
