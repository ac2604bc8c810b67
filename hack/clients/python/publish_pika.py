"""Publishes messages of all kinds with pika. The argument is how many of each."""

import json
import os
import sys

import pika

connection = pika.BlockingConnection(pika.URLParameters(os.environ["BROKER"]))
channel = connection.channel()
channel.confirm_delivery()
channel.exchange_declare("async", exchange_type="direct", durable=True)  # it is there, and a plain declaration agrees with it
for i in range(1, int(sys.argv[1]) + 1):
    for mode in "plain", "busy", "wrong":
        name = f"{mode}-{i}"
        properties = pika.BasicProperties(
            message_id=name, type="shop.order", content_type="application/json", content_encoding="utf-8",
            correlation_id="c-" + name, delivery_mode=2, timestamp=1700000000, priority=3,
            headers={"tenant": "acme", "mode": mode, "number": 2**40 + i, "half": True, "none": None, "list": [1, "a"], "table": {"x": {"y": 1}}},
        )
        channel.basic_publish("async", "async", json.dumps({"name": name, "text": "é\u2028\n"}).encode(), properties, mandatory=True)
try:
    channel.basic_publish("async", "nobody", b"{}", pika.BasicProperties(message_id="lost"), mandatory=True)
except pika.exceptions.UnroutableError:
    print("unroutable")
connection.close()
