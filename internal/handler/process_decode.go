package handler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	kjson "sigs.k8s.io/json"

	"redrive.dev/redrive/internal/retry"
)

// The version of the process protocol that this worker speaks, and the largest number of messages at a time that a process may say
// it takes.
const (
	protocolVersion = 1
	maxPlaces       = 1000
)

// word is the type of a frame that a process writes.
type word string

const (
	wordHello    word = "hello"
	wordResult   word = "result"
	wordProgress word = "progress"
)

// frame is what a process said.
type frame struct {
	word word
	// id of the message, for all but hello.
	id uint64
	// failure of the message, for a result; nil is success.
	failure *retry.Failure
	// places is how many messages the process takes at a time, for hello.
	places int
}

// errStray says that a line is not a frame, or one of a type that nobody knows.
var errStray = errors.New("it is not a frame of the protocol")

// readFrame reads a line. The error is errStray, or else says how a frame breaks the protocol.
func readFrame(line []byte) (frame, error) {
	if id, ok := acknowledged(line); ok {
		return frame{word: wordResult, id: id}, nil
	}
	if line = trimLine(line); len(line) == 0 || line[0] != '{' {
		return frame{}, errStray
	}
	var wire struct {
		Type        json.RawMessage `json:"type"`
		ID          json.RawMessage `json:"id"`
		Protocol    json.RawMessage `json:"protocol"`
		Concurrency json.RawMessage `json:"concurrency"`
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(line, &wire) != nil {
		if beginsResult(line) {
			return frame{}, errors.New("a result is no JSON")
		}
		return frame{}, errStray
	}
	kind := word(textOf(wire.Type))
	switch kind {
	case wordHello:
		return readHello(wire.Protocol, wire.Concurrency)
	case wordResult, wordProgress:
		id, ok := readID(wire.ID)
		if !ok {
			return frame{}, fmt.Errorf("a %s has the id %s, which it was not given", kind, quoted(wire.ID))
		}
		f := frame{word: kind, id: id}
		if f.word == wordResult {
			f.failure = decodeResult(line)
		}
		return f, nil
	}
	return frame{}, errStray
}

// byteOrderMark is what some languages write before the first text.
const byteOrderMark = "\ufeff"

// trimLine is a line without the white space around it, and without a byte order mark before it.
func trimLine(line []byte) []byte {
	return bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(line), []byte(byteOrderMark)))
}

// beginsResult is true of a line that begins as a result does. It cannot be told which message it is about, if it is broken.
func beginsResult(line []byte) bool {
	const start = `{"type":"result"`
	at := 0
	for _, c := range line {
		switch {
		case at == len(start):
			return true
		case c == start[at]:
			at++
		case c != ' ' && c != '\t':
			return false
		}
	}
	return at == len(start)
}

// readHello reads what a process says first.
func readHello(protocol, concurrency json.RawMessage) (frame, error) {
	if version, ok := readNumber(protocol); !ok || version != protocolVersion {
		return frame{}, fmt.Errorf("its hello is of protocol %s; this worker speaks protocol %d", quoted(protocol), protocolVersion)
	}
	f := frame{word: wordHello, places: 1}
	if len(concurrency) > 0 && string(concurrency) != "null" {
		places, ok := readNumber(concurrency)
		if !ok {
			return frame{}, fmt.Errorf("its hello has the concurrency %s, which is no number", quoted(concurrency))
		}
		f.places = int(min(max(places, 1), maxPlaces))
	}
	return f, nil
}

// readNumber reads a number of any size.
func readNumber(data json.RawMessage) (float64, bool) {
	if len(data) == 0 || data[0] != '-' && (data[0] < '0' || data[0] > '9') {
		return 0, false
	}
	n, err := strconv.ParseFloat(string(data), 64)
	if errors.Is(err, strconv.ErrRange) && math.IsInf(n, 0) {
		return n, true
	}
	return n, err == nil
}

// readID reads an id. Languages that take "17" for 17 in a key are forgiven.
func readID(data json.RawMessage) (uint64, bool) {
	if len(data) > 1 && data[0] == '"' {
		data = data[1 : len(data)-1]
	}
	id, err := strconv.ParseUint(string(data), 10, 64)
	return id, err == nil
}

// quoted is a value as an error shows it.
func quoted(data json.RawMessage) string {
	if len(data) == 0 {
		return "(none)"
	}
	return excerptOf(data)
}

// acknowledged reads the frame that most are, without encoding/json: {"type":"result","id":"17","outcome":"ack"} with its fields
// in any order, and with any white space between them. It leaves all else to the slow way.
func acknowledged(line []byte) (id uint64, ok bool) {
	s := scanner{rest: line}
	if !s.skip('{') {
		return 0, false
	}
	var kind, outcome bool
	var digits []byte
	for fields := 0; ; fields++ {
		name, ok := s.text()
		if !ok || !s.skip(':') {
			return 0, false
		}
		value, ok := s.text()
		if !ok {
			return 0, false
		}
		switch string(name) {
		case "type":
			kind = string(value) == string(wordResult)
		case "id":
			digits = value
		case "outcome":
			outcome = string(value) == outcomeAck
		default:
			return 0, false
		}
		if s.skip(',') {
			continue
		}
		if fields != 2 || !kind || !outcome || !s.skip('}') || !s.atEnd() {
			return 0, false
		}
		return plainID(digits)
	}
}

// plainID reads an id of a few digits.
func plainID(digits []byte) (id uint64, ok bool) {
	if len(digits) == 0 || len(digits) > 18 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		id = id*10 + uint64(c-'0')
	}
	return id, true
}

// scanner reads the tokens of an object of texts.
type scanner struct {
	rest []byte
}

func (s *scanner) space() {
	for len(s.rest) > 0 && (s.rest[0] == ' ' || s.rest[0] == '\n' || s.rest[0] == '\r' || s.rest[0] == '\t') {
		s.rest = s.rest[1:]
	}
}

// skip takes a character, where it is the next.
func (s *scanner) skip(c byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// text takes a text in which nothing is escaped.
func (s *scanner) text() ([]byte, bool) {
	if !s.skip('"') {
		return nil, false
	}
	end := bytes.IndexByte(s.rest, '"')
	if end < 0 || plain(s.rest[:end], false) != end {
		return nil, false
	}
	text := s.rest[:end]
	s.rest = s.rest[end+1:]
	return text, true
}

func (s *scanner) atEnd() bool {
	s.space()
	return len(s.rest) == 0
}
