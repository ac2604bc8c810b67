package handler_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/handler"
)

// stockError tells class and status.
type stockError struct{ error }

func (stockError) Class() string { return "OutOfStock" }
func (stockError) Status() int   { return 409 }

// closed tells a delay.
type closed time.Duration

func (closed) Error() string               { return "closed" }
func (c closed) RetryAfter() time.Duration { return time.Duration(c) }

// unclassed has the method and nothing to say.
type unclassed struct{}

func (unclassed) Error() string { return "nothing to say" }
func (unclassed) Class() string { return "" }

// named has a type alone.
type named string

func (n *named) Error() string { return string(*n) }

func TestFailureOf_TellsWhatBecomesOfTheMessage(t *testing.T) {
	base := errors.New("no flour left")
	minute := time.Minute
	zero := time.Duration(0)
	text := named("of a type")
	_, opening := os.Open("/nowhere/at/all")
	_, dialing := net.Dial("unix", "/nowhere/at/all")
	decoding := json.Unmarshal([]byte("{"), new(int))
	tests := map[string]struct {
		err  error
		want handler.Failure
	}{
		"success tells nothing":                  {nil, handler.Failure{}},
		"a plain error leaves all to the policy": {base, handler.Failure{Message: "no flour left"}},
		"a wrapped plain error has no class":     {fmt.Errorf("bake: %w", base), handler.Failure{Message: "bake: no flour left"}},
		"Fail":                                   {handler.Fail(base), handler.Failure{Advice: handler.AdviceFail, Message: "no flour left"}},
		"Release": {
			handler.Release(time.Minute, base), handler.Failure{Advice: handler.AdviceRelease, RetryAfter: &minute, Message: "no flour left"},
		},
		"Release without a reason": {
			handler.Release(-1, nil), handler.Failure{Advice: handler.AdviceRelease, RetryAfter: &zero, Message: "the handler releases the message for 0s and gives no reason"},
		},
		"Carry": {handler.Carry("step 2", base), handler.Failure{Carry: new("step 2"), Message: "no flour left"}},
		"Carry around advice, and within it": {
			handler.Carry("outer", handler.RetryAfter(minute, handler.Carry("inner", stockError{base}))),
			handler.Failure{Carry: new("outer"), Advice: handler.AdviceRetry, RetryAfter: &minute, Class: "OutOfStock", Status: 409, Message: "no flour left"},
		},
		"Carry takes back, without a reason": {
			handler.Fail(handler.Carry("", nil)),
			handler.Failure{Carry: new(""), Advice: handler.AdviceFail, Message: "the handler asked for another attempt without a reason"},
		},
		"Drop":                            {handler.Drop(base), handler.Failure{Advice: handler.AdviceDrop, Message: "no flour left"}},
		"RetryAfter":                      {handler.RetryAfter(minute, base), handler.Failure{Advice: handler.AdviceRetry, RetryAfter: &minute, Message: "no flour left"}},
		"RetryAfter of less than nothing": {handler.RetryAfter(-minute, base), handler.Failure{Advice: handler.AdviceRetry, RetryAfter: &zero, Message: "no flour left"}},
		"advice that was wrapped": {
			fmt.Errorf("bake: %w", handler.Fail(base)),
			handler.Failure{Advice: handler.AdviceFail, Message: "bake: no flour left"},
		},
		"advice among joined errors": {
			errors.Join(base, handler.Drop(nil)),
			handler.Failure{Advice: handler.AdviceDrop, Message: "no flour left\nthe handler drops the message and gives no reason"},
		},
		"the outermost of three": {
			handler.Fail(fmt.Errorf("bake: %w", handler.Drop(handler.RetryAfter(minute, base)))),
			handler.Failure{Advice: handler.AdviceFail, Message: "bake: no flour left"},
		},
		"no delay of an inner RetryAfter": {
			handler.Drop(handler.RetryAfter(minute, base)),
			handler.Failure{Advice: handler.AdviceDrop, Message: "no flour left"},
		},
		"Fail without an error": {
			handler.Fail(nil), handler.Failure{Advice: handler.AdviceFail, Message: "the handler fails the message and gives no reason"},
		},
		"RetryAfter without an error": {
			handler.RetryAfter(minute, nil),
			handler.Failure{Advice: handler.AdviceRetry, RetryAfter: &minute, Message: "the handler asks for a retry after 1m0s and gives no reason"},
		},
		"class and status of an error, through all that is around it": {
			handler.Fail(fmt.Errorf("bake: %w", stockError{base})),
			handler.Failure{Advice: handler.AdviceFail, Class: "OutOfStock", Status: 409, Message: "bake: no flour left"},
		},
		"a delay without advice": {
			fmt.Errorf("bake: %w", closed(time.Minute)),
			handler.Failure{RetryAfter: &minute, Class: "handler_test.closed", Message: "bake: closed"},
		},
		"a delay of less than nothing": {closed(-1), handler.Failure{RetryAfter: &zero, Class: "handler_test.closed", Message: "closed"}},
		"the delay of the advice": {
			handler.RetryAfter(minute, closed(time.Second)),
			handler.Failure{Advice: handler.AdviceRetry, RetryAfter: &minute, Class: "handler_test.closed", Message: "closed"},
		},
		"the outermost class": {
			stockError{&text}, handler.Failure{Class: "OutOfStock", Status: 409, Message: "of a type"},
		},
		"a class that is empty is none": {unclassed{}, handler.Failure{Class: "handler_test.unclassed", Message: "nothing to say"}},
		"the type of an error": {
			fmt.Errorf("bake: %w", handler.Fail(&text)),
			handler.Failure{Advice: handler.AdviceFail, Class: "handler_test.named", Message: "bake: of a type"},
		},
		"the innermost type": {
			&exec.Error{Name: "oven", Err: &text}, handler.Failure{Class: "handler_test.named", Message: `exec: "oven": of a type`},
		},
		"the first of joined errors that has a type": {
			errors.Join(base, fmt.Errorf("%w, %w", io.EOF, &text), decoding),
			handler.Failure{Class: "handler_test.named", Message: "no flour left\nEOF, of a type\nunexpected end of JSON input"},
		},
		"a number of the system has no telling type": {
			opening, handler.Failure{Class: "fs.PathError", Message: "open /nowhere/at/all: no such file or directory"},
		},
		"nor has a call of the system": {
			dialing, handler.Failure{Class: "net.OpError", Message: "dial unix /nowhere/at/all: connect: no such file or directory"},
		},
		"a type of the standard library": {
			decoding, handler.Failure{Class: "json.SyntaxError", Message: "unexpected end of JSON input"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := handler.FailureOf(tt.err); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestAdvice_WrapsItsError(t *testing.T) {
	for _, err := range []error{handler.Fail(fs.ErrNotExist), handler.Drop(fs.ErrNotExist), handler.RetryAfter(0, fs.ErrNotExist)} {
		if !errors.Is(fmt.Errorf("read: %w", err), fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
			t.Errorf("%v is not what it wraps", err)
		}
	}
	if _, ok := errors.AsType[stockError](handler.Drop(stockError{io.EOF})); !ok {
		t.Error("the type of the error in it is not found")
	}
}

func TestFunc_IsAHandler(t *testing.T) {
	var h handler.Handler = handler.Func(func(_ context.Context, m *handler.Message) error {
		return handler.Fail(errors.New(m.ID))
	})
	if err := h.Handle(t.Context(), &handler.Message{ID: "17"}); err == nil || err.Error() != "17" {
		t.Errorf("got %v", err)
	}
}

func TestHandler_NeedsOnlyTheStandardLibrary(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(out)); !reflect.DeepEqual(got, []string{"redrive.dev/redrive/handler"}) {
		t.Errorf("it needs %v", got)
	}
}
