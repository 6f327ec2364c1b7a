"""Measures of the theory: they read results, and no method ever calls them."""
