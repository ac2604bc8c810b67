// Package tenancy bounds what one namespace takes of the operator, which works for all of them: reconciles that go on or wait (Admission), processors
// (Processors), memory (Memory), reads of objects that may be large (Reader) and events (EventRecorder). Each limit of a namespace holds for that
// namespace alone, so that a tenant who reaches one delays nobody but itself.
package tenancy
