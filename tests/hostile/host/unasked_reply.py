"""Answers twice."""

# expect: protocol

import json
import os
import struct


def send(seq, value):
    payload = json.dumps([seq, True, value]).encode()
    os.write(3, struct.pack(">I", len(payload)) + payload)


class Hostile:
    def reset(self, seed=None):
        send(2, ["forged", {}])
        return "ready", {}

    def step(self, action):
        send(3, ["won", 1.0, True, False, {}])
        send(3, ["won again", 1.0, True, False, {}])
        return "ready", 0.0, False, False, {}
