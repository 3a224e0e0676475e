"""Every mechanism by name, one file each: how a strategy matrix C is chosen.

registry.py has the names, the search of parameters and `build`; choice.py is the choice in a run or
a stream, and design.py compares mechanisms. What C is, and its sensitivity, is in fedmf.matrices.
Mechanisms are not trusted: the noise follows from the coefficients of C, however they were chosen.
"""
