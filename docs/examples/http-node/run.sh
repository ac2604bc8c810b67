#!/bin/sh
# Runs this example: a server in Node that the worker posts to. It uses the RabbitMQ of AMQP_URL and MANAGEMENT_URL, or
# starts one, publishes messages.json, and says what became of each message.
cd "$(dirname "$0")" && exec go run ../../../hack/broker -- go run ../../../hack/example -serve "node server.mjs" -port 8089
