// Package tenancy bounds what one namespace takes of the operator, which works for all of them: reconciles that go on or wait (Admission), processors
// (Processors), memory (Memory), reads of objects that may be large (Reader) and events (EventRecorder). A tenant who reaches a limit delays nobody but
// itself: the limit is that of its namespace alone, or leaves something to each further namespace, or those that have taken less come first.
package tenancy
