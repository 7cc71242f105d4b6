"""Forges text with half a surrogate pair, which no tokenizer can encode."""

# expect: protocol

import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        payload = b'[3,true,["\\ud800",1.0,true,false,{}]]'
        os.write(3, struct.pack(">I", len(payload)) + payload)
