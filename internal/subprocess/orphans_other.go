//go:build !linux

package subprocess

// Main runs a program and returns its exit code.
func Main(program func() int) int { return program() }
