// Command worker consumes the queues of one Transport, calls the team's handler with each message, and carries out the
// retry policy. It is what the worker Deployments run, unless the handler is a Go program that is the worker itself.
package main

import "redrive.dev/redrive/handler/run"

func main() { run.Main(nil) }
