"""Handles every message, and does nothing."""

import sys

sys.path.insert(0, sys.argv[1])

import redrive

redrive.serve(lambda message: None)
