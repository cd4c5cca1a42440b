"""Models of other toolkits and engines, to and from; a module for each, imported by name for what it needs."""
