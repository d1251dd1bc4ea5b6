"""Weights that stay in their files until they are used, one at a time."""
