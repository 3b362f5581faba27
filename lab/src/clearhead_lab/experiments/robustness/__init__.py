"""Experiments on the accuracy and cost of attention variants under image corruptions."""
