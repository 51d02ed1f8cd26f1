"""What runs where, and why: selection, the frozen Plan, and how people are shown it. Imports no torch."""
