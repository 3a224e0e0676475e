"""Privacy amplification by sampling: cyclic Poisson, Balls-in-Bins and b-min-sep."""
