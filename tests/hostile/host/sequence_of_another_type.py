"""Answers with true as its sequence number, which equals 1 in Python."""

# expect: protocol

import json
import os
import struct


def send(seq, value):
    payload = json.dumps([seq, True, value]).encode()
    os.write(3, struct.pack(">I", len(payload)) + payload)


class Hostile:
    def __init__(self):
        send(True, None)
