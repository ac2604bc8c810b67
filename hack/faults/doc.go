// Package faults is the proof that no message is lost: real worker processes and a real RabbitMQ, and a wire between them that
// fails at the worst moments. Each case publishes numbered messages, puts one fault in at a named point, does that many
// times in one run, and counts from outside: what the producer had confirmed on one side, what the partner answered with
// success and what the failure queue holds on the other. The workers' own counts are not believed.
//
// Every case ends the same way (scene.settle): no message is lost, no more of them ended twice than were in flight at the
// faults, and no queue, lane or quarantine queue holds one. How long the worker took to go on by itself is logged.
// docs/reliability.md has the cases in a table.
//
// The matrix (TestMatrix_KeepsAFaultWithItsObject) is for what fails alone: a fault in one lane, queue, exchange or right, while messages that
// do not need it flow beside those that do. These have to go on at their rate.
//
// `make test` runs those once that take seconds, and `make test-all` all of them. `make test-faults` runs each FAULT_ROUNDS times.
package faults
