"""The handler of what publish_pika.py publishes."""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs/examples/clients/python"))

import redrive  # noqa: E402
import report  # noqa: E402


def handle(message):
    report.attempt = message.attempt
    name = json.loads(message.body)["name"]
    about = {key: getattr(message, key) for key in ("id", "type", "contentType", "contentEncoding", "correlationId", "timestamp", "queue", "exchange", "routingKey")}
    report.that("message", name, headers=message.headers, message=about, body=message.body.decode())
    if message.headers["mode"] == "busy" and message.attempt == 1:
        raise RuntimeError("the partner is busy")
    if message.headers["mode"] == "wrong":
        raise redrive.Fail("it never works")


redrive.serve(handle)
