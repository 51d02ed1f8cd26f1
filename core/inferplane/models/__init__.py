"""One readable file per model type, public to model plugins; the package itself imports no torch."""
