"""What core and the conformance kit both need to read plugins. No part of the contract: it may change at any time.

Light: no torch. `inventory` and `soundness` need `packaging`, which core and the extra `testing` bring.
"""
