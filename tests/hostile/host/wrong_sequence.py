"""Answers a request that has not been made yet."""

# expect: protocol

import json
import os
import struct


def send(seq, value):
    payload = json.dumps([seq, True, value]).encode()
    os.write(3, struct.pack(">I", len(payload)) + payload)


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        send(4, ["won", 1.0, True, False, {}])
        return "ready", 0.0, False, False, {}
