"""Runs untrusted programs in processes of their own; see README.md here."""

from spade_jax.sandbox.limits import Limits
from spade_jax.sandbox.pool import Pool
from spade_jax.sandbox.replies import Reply, SandboxError

__all__ = ["Limits", "Pool", "Reply", "SandboxError"]
