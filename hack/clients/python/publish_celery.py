"""Publishes tasks as an application does. The argument is how many of each kind."""

import sys
import time

import tasks

for i in range(1, int(sys.argv[1]) + 1):
    for mode in "plain", "busy", "wrong":
        tasks.handle.apply_async((f"{mode}-{i}", mode))
    tasks.handle.apply_async((f"later-{i}", "later"), {"due": time.time() + 2}, countdown=2)
    tasks.handle.apply_async((f"expired-{i}", "expired"), countdown=2, expires=1)  # it expires before its time comes
    tasks.app.send_task("shop.unknown", (f"unknown-{i}", "unknown"))
