"""Forges a reward that overflows to infinity as it is read."""

# expect: protocol

import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        payload = b'[3,true,["won",1e999,true,false,{}]]'
        os.write(3, struct.pack(">I", len(payload)) + payload)
