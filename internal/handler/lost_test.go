package handler

import (
	"errors"
	"strconv"
	"testing"
)

func TestLost_LogsTheKindAndNothingThatAServerSays(t *testing.T) {
	for text, want := range map[string]string{
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=INTERNAL_ERROR, debug="marked body"`: "http2: server sent GOAWAY and " +
			"closed the connection; LastStreamID=1, ErrCode=INTERNAL_ERROR, and debug data",
		"stream error: stream ID 1; INTERNAL_ERROR; received from peer":                          "stream error: stream ID 1; INTERNAL_ERROR; received from peer",
		"stream error: stream ID 1; REFUSED_STREAM":                                              "stream error: stream ID 1; REFUSED_STREAM",
		`stream error: stream ID 1; PROTOCOL_ERROR; invalid header field name "marked; x"`:       "stream error: stream ID 1; PROTOCOL_ERROR",
		"connection error: COMPRESSION_ERROR":                                                    "connection error: COMPRESSION_ERROR",
		"http2: client connection lost":                                                          "http2: client connection lost",
		`http2: Transport: cannot retry err [stream error: stream ID 1; X; "marked"] after that`: "the connection ended, or broke HTTP/2",
	} {
		failure := lost(errors.New(text))
		if failure.Logged != want || failure.Message != text {
			t.Errorf("%+v, want %q logged", failure, want)
		}
	}
}

func TestCarrier_GivesUpOnTooManySpellingsOfOneHeader(t *testing.T) {
	c := &carrier{own: map[string]any{}, headerRules: headerRules{all: true}}
	for n := 2; n < 2*maxCarriedHeaders; n++ {
		c.own["x-"+strconv.Itoa(n)] = "v"
	}
	c.own["x"] = "v"
	if field := c.fieldOf("X"); field != "" {
		t.Errorf("the field is %q, after more tries than headers are carried", field)
	}
}
