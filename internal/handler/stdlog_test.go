package handler

import (
	"bytes"
	"errors"
	"log"
	"strconv"
	"strings"
	"testing"
)

func TestAnAnswerThatNobodyAskedForIsNotLogged(t *testing.T) {
	var out bytes.Buffer
	to := log.New(&withoutAnswers{&out}, "", 0)
	to.Printf("%s starting with %q; err=<nil>", unsolicited, "HTTP/1.1 500 Oops\r\n\r\nmarked body")
	to.Print("another line")
	if got := out.String(); strings.Contains(got, "marked") || !strings.Contains(got, "answered a request twice\n") || !strings.HasSuffix(got, "another line\n") {
		t.Errorf("logged %q", got)
	}
}

func TestWhatAServerSaysWhenItGoesAwayIsNotLogged(t *testing.T) {
	failure := lost(errors.New(`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=INTERNAL_ERROR, debug="marked body"`))
	if strings.Contains(failure.Logged, "marked") || !strings.Contains(failure.Logged, "INTERNAL_ERROR") || !strings.Contains(failure.Message, "marked") {
		t.Errorf("%+v", failure)
	}
}

func TestSpellingsOfOneHeaderAreNotCountedThrough(t *testing.T) {
	c := &carrier{own: map[string]any{}, headerRules: headerRules{all: true}}
	for n := 2; n < 2*maxCarriedHeaders; n++ {
		c.own["x-"+strconv.Itoa(n)] = "v"
	}
	c.own["x"] = "v"
	if field := c.fieldOf("X"); field != "" {
		t.Errorf("the field is %q, after more tries than headers are carried", field)
	}
}
