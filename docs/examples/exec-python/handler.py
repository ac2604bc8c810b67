"""The handler of orders, as a script: it is started for each message, and its exit code says what became of it."""
import json
import os
import sys

EX_DATAERR = 65  # sysexits: the message is bad, however often it is tried
EX_TEMPFAIL = 75  # try again later; this does not count against maxRetries

order = json.load(sys.stdin.buffer)
attempt = int(os.environ["REDRIVE_ATTEMPT"])

if "customer" not in order:
    print("an order needs a customer", file=sys.stderr)
    sys.exit(EX_DATAERR)
if order.get("busy") and attempt == 1:
    sys.exit(EX_TEMPFAIL)
if order.get("flaky") and attempt == 1:
    # More than an exit code can say: the last line of the standard output, as JSON.
    print(json.dumps({"outcome": "failure", "class": "Flaky", "message": "no luck this time"}))
    sys.exit(0)
print(f"order of {order['customer']} stored at attempt {attempt}", file=sys.stderr)
