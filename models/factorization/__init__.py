"""Recommenders that factorise the ratings."""
