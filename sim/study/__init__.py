"""Capacity studies: a day of very many users on a fast model of counts, not of the code.

The simulator beside this package runs the real code and asks whether it is right. A study asks how much of
everything a day needs; it moves numbers of users through the measured primitives of `figures`, a second at a
time, for many fleets at once.
"""
