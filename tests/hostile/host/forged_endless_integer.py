"""Forges a number of 100,000 digits, whose conversion takes quadratic time."""

# expect: protocol

import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        payload = b'[3,true,["won",' + b"9" * 100_000 + b",true,false,{}]]"
        os.write(3, struct.pack(">I", len(payload)) + payload)
