package handler

import (
	"fmt"
	"path"
	"runtime"
	"runtime/debug"
	"strings"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

const (
	// ClassPanic is a handler in Go that panicked.
	ClassPanic = "panic"

	classGoexit = "Goexit"
	goexited    = "the handler ended its goroutine with runtime.Goexit"

	// maxStack bounds the stack in the log, in bytes, and maxPanic the text of what was panicked with, in bytes: there has to be
	// room for the place beside it.
	maxStack = 64 << 10
	maxPanic = 300
	// maxFrames is how deep the team's code is looked for.
	maxFrames = 64
)

// crash is the failure of a call that did not return. logged is what of its text may stand in a log.
func crash(class, text, logged string) *retry.Failure {
	return &retry.Failure{Source: retry.SourceCrash, Class: class, Message: bounded(text, message.MaxText), Logged: bounded(logged, message.MaxText)}
}

// panicked is the failure of a call that panicked. It is called while the stack of that call still stands.
func (h *InProcess) panicked(m *public.Message, value any) *retry.Failure {
	stack := debug.Stack()
	text := bounded(fmt.Sprint(value), maxPanic)
	// The text stands on the message, like that of every error, and not in the log.
	h.log.Error("the handler panicked", "queue", m.Queue, "message", m.ID, "attempt", m.Attempt,
		"stack", string(stack[:min(len(stack), maxStack)]))
	at := placeOfPanic()
	return crash(ClassPanic, fmt.Sprintf("panic: %s, %s", text, at), "panic, "+at)
}

// placeOfPanic names the innermost function of the team's code on a stack that panics, or else the one that panicked: "at
// example.com/shop.(*Orders).Handle (orders.go:42)".
func placeOfPanic() string {
	callers := make([]uintptr, maxFrames)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	var first *runtime.Frame
	for panics, more := false, true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		switch {
		case frame.Function == "runtime.gopanic":
			panics = true
		case !panics || strings.HasPrefix(frame.Function, "runtime."):
		case isTeams(frame.Function):
			return place(frame)
		case first == nil:
			first = &frame
		}
	}
	if first == nil {
		return "at a place that is not known"
	}
	return place(*first)
}

func place(frame runtime.Frame) string {
	return fmt.Sprintf("at %s (%s:%d)", frame.Function, path.Base(frame.File), frame.Line)
}

// isTeams is true for a function of the program's own module. One that was built without modules is known by package main alone.
func isTeams(function string) bool {
	if strings.HasPrefix(function, "main.") {
		return true
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Path == "" {
		return false
	}
	below, ok := strings.CutPrefix(function, info.Main.Path)
	return ok && strings.IndexAny(below, "./_") == 0
}
