"""The paper's evaluation: what to run (``items/``), running it, drawing it, judging it."""
