#!/usr/bin/env bash
# Runs the Python that has pika and Celery: that of PATH, or that of the system where Debian's packages are.
for python in python3 /usr/bin/python3; do
	"$python" -c 'import celery, pika' 2>/dev/null && exec "$python" "$@"
done
exec python3 "$@"
