package main

// Run is the whole program, with a handler in its own process.
var Run = run
