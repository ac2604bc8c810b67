"""Obeys the orders of the package handlertest. The argument is the folder of the client."""

import hashlib
import os
import re
import socket
import sys
import time

sys.path.insert(0, sys.argv[1])

import redrive

FLOOD = 64 << 20


def description(m):
    def moment(value):
        return re.sub(r"\.\d+", "", value) if value else "0001-01-01T00:00:00Z"

    return "|".join(
        str(part)
        for part in (
            m.id or "", m.idempotencyKey or "", m.attempt or 0, m.retries or 0, m.queue or "", m.exchange or "", m.routingKey or "",
            m.type or "", m.correlationId or "", m.contentType or "", m.contentEncoding or "",
            m.replyTo or "", m.appId or "", m.userId or "", m.priority or 0, m.expiration or "", moment(m.timestamp), moment(m.firstFailure),
            m.traceparent or "", m.tracestate or "",
        )
    )


def flood():
    part = b"flood " * 10_000 + b"\n"
    for _ in range(FLOOD // len(part) + 1):
        os.write(2, part)


def hang(m):
    if address := m.headers.get("test-report"):
        host, port = address.rsplit(":", 1)
        report = socket.create_connection((host, int(port)))  # it stands for as long as this process does
    while True:
        time.sleep(3600)


def handle(m):
    order = m.headers["test-order"]
    if order == "succeed":
        if hashlib.sha256(m.body).hexdigest() != m.headers["test-sum"]:
            raise redrive.Failure("the body is another one", name="Mismatch")
    elif order == "succeed unread":
        pass
    elif order == "refuse":
        failure = redrive.Failure("no flour left", name="OutOfStock")
        failure.seconds = 7
        raise failure
    elif order == "advise fail":
        raise redrive.Fail("as it asks for", name="Advised")
    elif order == "advise drop":
        raise redrive.Drop("as it asks for", name="Advised")
    elif order == "advise retry":
        raise redrive.RetryAfter(90, "as it asks for", name="Advised")
    elif order == "advise release":
        raise redrive.Release(90, "as it asks for", name="Advised")
    elif order == "carry":
        raise redrive.Failure("half done", name="Half", carry=(m.carry or "") + "+1")
    elif order == "describe":
        raise redrive.Failure(description(m), name="Described")
    elif order == "hang":
        hang(m)
    elif order == "crash":
        os.abort()
    elif order == "flood success":
        flood()
    elif order == "flood failure":
        flood()
        raise redrive.Failure("the water rises", name="Flood")
    elif order == "progress":
        for _ in range(8):  # altogether longer than the timeout
            time.sleep(0.5)
            m.progress()
    elif order == "raise":
        print("a stray print", flush=True)
        {}["no such thing"]
    else:
        raise redrive.Failure("the order is " + repr(order), name="NoOrder")


redrive.serve(handle)
