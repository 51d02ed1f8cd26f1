"""Slow, readable torch references of every op and of attention: the truth that backends are checked against."""
