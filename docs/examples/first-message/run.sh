#!/bin/sh
# Runs this example without a cluster. It uses the RabbitMQ of AMQP_URL and MANAGEMENT_URL, or starts one, publishes messages.json,
# and says what became of each message.
cd "$(dirname "$0")" && exec go run ../../../hack/broker -- go run ../../../hack/example
