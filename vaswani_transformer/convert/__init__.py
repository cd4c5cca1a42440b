"""Conversion from other toolkits and to other engines, one module each.

Import each module by its full name, because each needs other packages.
"""
