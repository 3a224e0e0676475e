"""Every mechanism by name, one file each: how a strategy matrix is chosen.

A mechanism registers itself when its module is loaded, which `registry` does when it is first
asked.
"""
