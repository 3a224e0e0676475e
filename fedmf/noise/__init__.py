"""Keyed Gaussian noise as integers, and its correlation: row t of C⁻¹z round by round."""
