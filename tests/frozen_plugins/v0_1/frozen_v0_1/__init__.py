"""A plugin written for version 0.1 of the contract. Never edit it."""
