"""Recommenders built on one noisy histogram of ratings per item."""
