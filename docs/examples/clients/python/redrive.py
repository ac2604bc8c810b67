"""Redrive's process protocol for Python 3.9 and newer. Copy this file beside your program:

    import redrive

    def handle(message):
        order = json.loads(message.body)
        ...

    redrive.serve(handle)

A handle that returns has handled the message. One that raises has failed, and the retry policy decides what follows, unless
the exception is Fail, Drop, RetryAfter or Release. Prints go to the worker's log.
"""

import base64
import json
import os
import sys
import traceback


class Failure(Exception):
    """A failure with a class and a status for the expressions of a retry policy."""

    advice = None
    seconds = None

    def __init__(self, text="", *, name=None, status=0, carry=None):
        super().__init__(text)
        self.name = name or type(self).__name__
        self.status = status
        self.carry = carry  # the next attempt finds it in message.carry


class Fail(Failure):
    """The message is wrong: to the failure queue, with no more retries."""

    advice = "fail"


class Drop(Failure):
    """Nobody needs the message any more: it is forgotten."""

    advice = "drop"


class RetryAfter(Failure):
    """The time of the message has not come: again after so many seconds, and it does not count."""

    advice = "retry"

    def __init__(self, seconds, text="", **kwargs):
        super().__init__(text, **kwargs)
        self.seconds = seconds


class Release(RetryAfter):
    """This was no attempt: the message comes again after so many seconds, and neither an attempt nor a retry is counted."""

    advice = "release"


class Message:
    """What the protocol tells about a message: body (bytes), deadline, and message.id, message.attempt, message.headers, …"""

    def __init__(self, frame, write):
        self.deadline = frame.get("deadline")
        self._frame, self._write = frame, write

    def __getattr__(self, name):
        return self._frame["message"].get(name)

    @property
    def body(self):
        text = self._frame.get("body")
        return base64.b64decode(self._frame["bodyBase64"]) if text is None else text.encode()

    def progress(self):
        """Asks for the whole timeout anew."""
        self._write({"type": "progress", "id": self._frame["id"]})


def serve(handle):
    """Calls handle with one message after the other, until the worker has no more."""
    frames = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    sys.stdout.flush()
    os.dup2(2, 1)  # what is printed, by whatever library, is no frame
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and what is read is not for others

    def write(frame):
        answers.write(json.dumps(frame).encode() + b"\n")
        answers.flush()

    write({"type": "hello", "protocol": 1, "concurrency": 1})
    for line in frames:
        frame = json.loads(line)
        if frame["type"] == "message":
            write({"type": "result", "id": frame["id"], **_result(handle, Message(frame, write))})


def _result(handle, message):
    try:
        handle(message)
    except Failure as failure:
        told = {"class": failure.name, "message": str(failure), "status": failure.status}
        if failure.advice:
            told["advice"] = failure.advice
        if failure.seconds is not None:
            told["retryAfter"] = failure.seconds
        if failure.carry is not None:
            told["carry"] = failure.carry
    except Exception as error:
        traceback.print_exc()
        told = {"class": type(error).__name__, "message": str(error)}
    else:
        return {"outcome": "ack"}
    told["message"] = told["message"][:1000]
    return {"outcome": "failure", **told}
