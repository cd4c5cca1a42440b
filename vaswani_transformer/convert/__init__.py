"""Conversion from other toolkits and to other engines, one module each.

They are imported by their full names, since each needs other packages.
"""
