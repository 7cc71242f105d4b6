"""spade_jax: a language model that trains itself by self-play, in JAX."""

import os
import sys

__version__ = "0.1.0"

# `python -m spade_jax.train` ("-m" until the module is found) or an installed `spade-train` begins here, with seconds
# of imports before it. Who imports the package as a library keeps his signals.
if sys.argv[:1] == ["-m"] or os.path.basename("".join(sys.argv[:1])).startswith("spade-"):
    from spade_jax.runtime import shutdown

    shutdown.exit_on_interrupt()
