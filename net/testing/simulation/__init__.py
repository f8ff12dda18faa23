"""Whole clusters on virtual time, from one seed: `barnabas.testing.simulate`, and the base of this project's own simulations."""
