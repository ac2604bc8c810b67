#!/bin/sh
# Runs this example: a Go program that is the worker. It uses the RabbitMQ of AMQP_URL and MANAGEMENT_URL, or
# starts one, publishes messages.json, and says what became of each message.
cd "$(dirname "$0")" && exec go run ../../../hack/broker -- go run ../../../hack/example go run .
