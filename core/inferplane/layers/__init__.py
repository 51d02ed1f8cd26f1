"""The building blocks of models, public to model plugins. Importing the package itself imports no torch."""
