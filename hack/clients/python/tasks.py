"""A Celery application, as its producers and workers have it."""

import os
import time

import report
from celery import Celery
from celery.signals import before_task_publish
from kombu import Queue

app = Celery("shop", broker=os.environ.get("CELERY_BROKER", ""))
app.conf.task_queues = [Queue("celery", no_declare=True)]  # Redrive has made it
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.task_ignore_result = True


@before_task_publish.connect
def name_the_message(headers=None, properties=None, **_):
    properties["message_id"] = headers["id"]


@app.task(name="shop.handle", bind=True)
def handle(self, name, mode, due=0):
    report.that("task", name, early=time.time() < due, mode=mode)
    if mode == "wrong":
        raise ValueError("this never works")
    mark = os.environ["REPORT"] + "." + name
    if mode == "busy" and not os.path.exists(mark):
        open(mark, "x", encoding="utf-8").close()
        raise RuntimeError("the partner is busy")
