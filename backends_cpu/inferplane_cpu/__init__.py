"""The CPU platform of Inferplane. Importing the package imports no torch."""
