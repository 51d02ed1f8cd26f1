"""The conformance kit: cases made from a plugin's own declarations, run by pytest. Importing it imports no torch.

    pytest --inferplane-platform NAME [--inferplane-level core|performance|full] [--inferplane-report FILE.json]
           --pyargs inferplane_api.testing

See docs/conformance.md. Needs `pip install "inferplane-api[testing]"`.
"""
