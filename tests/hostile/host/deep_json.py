"""Forges brackets nested 100,000 deep, to exhaust the reader's stack."""

# expect: protocol

import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        payload = b"[" * 100_000 + b"]" * 100_000
        os.write(3, struct.pack(">I", len(payload)) + payload)
