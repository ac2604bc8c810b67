package handler

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"redrive.dev/redrive/internal/message"
)

// wireMessage is the frame of a message as encoding/json reads it.
type wireMessage struct {
	Type       string         `json:"type"`
	ID         string         `json:"id"`
	Deadline   time.Time      `json:"deadline"`
	Message    map[string]any `json:"message"`
	Body       *string        `json:"body"`
	BodyBase64 *string        `json:"bodyBase64"`
}

// clean is a text as JSON has it: each byte that is not UTF-8 is U+FFFD.
func clean(text string) string { return string([]rune(text)) }

// readMessage reads a frame back, and fails the test if it is not one line of JSON.
func readMessage(t testing.TB, frame []byte) wireMessage {
	t.Helper()
	if bytes.Count(frame, []byte("\n")) != 1 || frame[len(frame)-1] != '\n' || !utf8.Valid(frame) {
		t.Fatalf("not one line of UTF-8: %q", frame)
	}
	if bytes.ContainsAny(frame, "\u0085\u2028\u2029\r\v\f") {
		t.Fatalf("what may be taken for the end of a line: %q", frame)
	}
	var wire wireMessage
	decoder := json.NewDecoder(bytes.NewReader(frame))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&wire); err != nil {
		t.Fatalf("%v: %q", err, frame)
	}
	return wire
}

func FuzzMessageFrames(f *testing.F) {
	f.Add("id", "{}", "name", "value", int64(1), 0.5)
	f.Add("\"\\\n\x00\x1f\x7f ü\u2028😀", "\"quoted\"\\\r\n\t", "\xff", "\xed\xa0\x80", int64(math.MinInt64), math.Inf(1))
	f.Add("", "\xff\xfe", "", strings.Repeat("é\"", 100), int64(-1), math.NaN())
	f.Add("12345678", "1234567\"", "abcdefghi\\jklmnopq", "        \x1f", int64(7), 1e300)
	f.Add("", strings.Repeat("é\u2028\x01", 500), "", strings.Repeat("x\t\xc2\x85", 700), int64(5), 1.5)
	f.Add("\x01\xff\u2028\xe2\x80", "\x00", "type", "\xc2\x85\xc2\xe2\xc2\x85\xe2\x80\xe2\x80\xa8\"", int64(-5), -1e-300)
	f.Add("é\u0085", "\u0085 Â\u2028\u2027\u2029\u202a \x00\x1f\r\t", "12345\u2028", "\xe2\x80", int64(3), 2.5)
	f.Fuzz(func(t *testing.T, id, body, name, value string, number int64, float float64) {
		at := time.Unix(number%1e11, 123456789)
		request := Request{
			ID: id, IdempotencyKey: name, Attempt: number, Retries: -number, Queue: value, Exchange: id, RoutingKey: body, Type: name,
			CorrelationID: value, ContentType: id, ContentEncoding: body, Traceparent: name, Tracestate: value, Carry: body, Timestamp: at, FirstFailure: at,
			ReplyTo: name, AppID: body, UserID: id, Priority: uint8(number), Expiration: value,
			Body: []byte(body), Headers: map[string]any{
				name: value, name + "bytes": []byte(value), name + "list": []any{number, int32(number), value, nil, number%2 == 0},
				name + "table": map[string]any{value: float, "f32": float32(float), "at": at, "u8": uint8(number)},
			},
		}
		wire := readMessage(t, appendMessage([]byte("before")[:0], 17, at, &request))
		if wire.Type != "message" || wire.ID != "17" {
			t.Errorf("got %+v", wire)
		}
		if late := wire.Deadline.Sub(at); !wire.Deadline.IsZero() && (late < 0 || late >= time.Millisecond) {
			t.Errorf("the deadline is %s, want %s", wire.Deadline, at)
		}
		for key, want := range map[string]string{
			"id": id, "idempotencyKey": name, "queue": value, "exchange": id, "routingKey": body, "type": name, "correlationId": value,
			"contentType": id, "contentEncoding": body, "traceparent": name, "tracestate": value, "carry": body,
			"replyTo": name, "appId": body, "userId": id, "expiration": value,
		} {
			if got, _ := wire.Message[key].(string); got != clean(want) {
				t.Errorf("%s: got %q, want %q", key, got, want)
			}
		}
		if got, _ := wire.Message["attempt"].(float64); got != float64(number) {
			t.Errorf("attempt %v, want %d", got, number)
		}
		if got, _ := wire.Message["priority"].(float64); got != float64(uint8(number)) {
			t.Errorf("priority %v, want %d", got, uint8(number))
		}
		checkBody(t, wire, body)
		checkSize(t, request)
		checkHeaders(t, wire, name, value, number, float)
	})
}

func checkBody(t *testing.T, wire wireMessage, want string) {
	t.Helper()
	switch {
	case (wire.Body == nil) == (wire.BodyBase64 == nil):
		t.Error("not one of body and bodyBase64")
	case wire.Body != nil:
		if *wire.Body != want {
			t.Errorf("body %q, want %q", *wire.Body, want)
		}
	default:
		if got, err := base64.StdEncoding.DecodeString(*wire.BodyBase64); err != nil || string(got) != want || utf8.ValidString(want) {
			t.Errorf("body %q, want %q", got, want)
		}
	}
}

// checkSize expects of a frame to take as much as is told of its message.
func checkSize(t *testing.T, r Request) {
	t.Helper()
	const numbers = 10 * longestValue
	if got, want := tableSize(r.Headers, 0), len(appendTable(nil, r.Headers, 0)); got < want || got > want+numbers {
		t.Errorf("the headers take %d bytes, and %d are told", want, got)
	}
	m := message.Message{
		MessageID: r.ID, Exchange: r.Exchange, RoutingKey: r.RoutingKey, Type: r.Type, CorrelationID: r.CorrelationID, ContentType: r.ContentType,
		ContentEncoding: r.ContentEncoding, ReplyTo: r.ReplyTo, AppID: r.AppID, UserID: r.UserID, Expiration: r.Expiration, Headers: r.Headers, Body: r.Body,
	}
	r.Queue, r.IdempotencyKey, r.Carry, r.Traceparent, r.Tracestate = "work", strings.Repeat("0", 32), "", "", ""
	got, want := (*Process)(nil).FrameSize(&m), len(appendMessage(nil, math.MaxUint64, time.Now(), &r))
	if _, again := r.Headers["type"]; got < want || got > want+aroundSize+numbers && !again {
		t.Errorf("it takes %d bytes, and %d are told", want, got)
	}
}

// checkHeaders compares with what encoding/json makes of the same values.
func checkHeaders(t *testing.T, wire wireMessage, name, value string, number int64, float float64) {
	t.Helper()
	headers, _ := wire.Message["headers"].(map[string]any)
	expect := map[string]any{
		name: clean(value), name + "bytes": clean(value),
		name + "list": []any{float64(number), float64(int32(number)), clean(value), nil, number%2 == 0},
	}
	for key, want := range expect {
		if got := headers[clean(key)]; !reflect.DeepEqual(got, want) {
			t.Errorf("header %q: got %#v, want %#v", key, got, want)
		}
	}
	table, _ := headers[clean(name+"table")].(map[string]any)
	for key, want := range map[string]float64{clean(value): float, "f32": float64(float32(float)), "u8": float64(uint8(number))} {
		if clean(value) == "f32" || clean(value) == "u8" || clean(value) == "at" {
			continue // one of them won
		}
		if math.IsNaN(want) || math.IsInf(want, 0) {
			if table[key] != nil {
				t.Errorf("%q: got %v, want null", key, table[key])
			}
			continue
		}
		if got, _ := table[key].(float64); float32(got) != float32(want) || key == clean(value) && got != want {
			t.Errorf("%q: got %v, want %v", key, got, want)
		}
	}
}

func TestAppendMessage_MakesALargeFrameOnce(t *testing.T) {
	json := []byte(strings.Repeat("{\"a\": \"b\\\\c\"}\n", 1<<16))
	for name, body := range map[string][]byte{
		"text": bytes.Repeat([]byte("x"), 1<<20), "JSON": json, "no text": bytes.Repeat([]byte{0xff}, 1<<20),
		"control characters": make([]byte, 1<<20), "separators": bytes.Repeat([]byte("\u0085 \u2028\u2029\r"), 1<<17),
	} {
		request := Request{ID: "m-1", Queue: "work", Body: body}
		space := make([]byte, 0, 1<<10)
		var frame []byte
		most := 1.0
		if name == "control characters" || name == "separators" {
			most = 2 // for it turns out on the way
		}
		if n := testing.AllocsPerRun(3, func() { frame = appendMessage(space, 17, time.Time{}, &request) }); n > most {
			t.Errorf("%s: made in %v pieces", name, n)
		}
		if cap(frame) > len(frame)+len(frame)/8 { // sizes of memory have steps
			t.Errorf("%s: a frame of %d bytes takes %d", name, len(frame), cap(frame))
		}
	}
}

// A header of 117 KiB, all control characters, took 702 KiB in the frame and up to 878 in memory, which nothing counted.
func TestAppendMessage_MakesRoomForHeadersOnce(t *testing.T) {
	for name, text := range map[string]string{"plain": "a", "control characters": "\x01", "no text": "\xff\x01", "separators": "\u2028"} {
		headers := map[string]any{"long": strings.Repeat(text, 60<<10/len(text)), "binary": bytes.Repeat([]byte(text), 30<<10/len(text)), "number": int64(-17)}
		for i := range 200 {
			headers[fmt.Sprint("short", i)] = strings.Repeat(text, 100)
		}
		request, space := Request{ID: "m-1", Queue: "work", Headers: headers}, make([]byte, 0, 1<<10)
		var frame []byte
		if n := testing.AllocsPerRun(3, func() { frame = appendMessage(space, 17, time.Time{}, &request) }); n > 3 { // two are of the binary header
			t.Errorf("%s: made in %v pieces", name, n)
		}
		told := (*Process)(nil).FrameSize(&message.Message{Headers: headers})
		if cap(frame) > told+told/8 || told < len(frame) {
			t.Errorf("%s: a frame of %d bytes takes %d, and %d are told", name, len(frame), cap(frame), told)
		}
	}
}

func TestProcess_TakesNoLargeBufferForASmallFrame(t *testing.T) {
	p := &Process{}
	p.buffers.New = func() any { return new(make([]byte, 0, maxKeptBuffer)) }
	for size, most := range map[int]int{20 << 10: 24 << 10, 900 << 10: maxKeptBuffer, 2 << 20: 2<<20 + 256<<10} {
		if frame := p.frameOf(17, time.Time{}, &Request{Body: make([]byte, size/6)}); len(*frame) < size || cap(*frame) > most {
			t.Errorf("a frame of %d bytes takes %d", len(*frame), cap(*frame))
		}
	}
}

func TestAppendMessage_WritesWholeFramesOfOddHeaders(t *testing.T) {
	deep := any("bottom")
	for range 200 {
		deep = []any{map[string]any{"x": deep}}
	}
	request := Request{Headers: map[string]any{
		"deep": deep, "channel": make(chan int), "complex": complex(1, 2), "year": time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC),
		"decimal": struct{ Scale, Value int }{2, 995}, "nil map": map[string]any(nil), "nil list": []any(nil), "u64": uint64(math.MaxUint64),
	}}
	wire := readMessage(t, appendMessage(nil, 1, time.Time{}, &request))
	headers, _ := wire.Message["headers"].(map[string]any)
	if len(headers) != len(request.Headers) || headers["channel"] != nil || headers["year"] != nil {
		t.Errorf("got %v", headers)
	}
	if !wire.Deadline.IsZero() {
		t.Errorf("a deadline %s where there is none", wire.Deadline)
	}
}

func FuzzAcknowledgements(f *testing.F) {
	for _, line := range []string{
		`{"type":"result","id":"17","outcome":"ack"}`, `{"outcome": "ack", "type": "result", "id": "1"} `, `{"type":"result","id":"1","outcome":"ack"`,
		`{"type":"result","id":"1","id":"2","outcome":"ack"}`, `{"type":"result","id":"\u0031","outcome":"ack"}`, `{"type":"result","id":"1","outcome":"ack"}}`,
		`{"type":"result","id":"1","outcome":"ack",}`, `{"type":"result","type":"result","outcome":"ack"}`, `{"type":"progress","id":"1","outcome":"ack"}`,
		"{\"type\":\"result\",\"id\":\"1\",\"outcome\":\"a\x01ck\"}", `{"type":"result","id":"99999999999999999999","outcome":"ack"}`, `{}`, ``, `{"`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		id, ok := acknowledged(line)
		_, _ = readFrame(line)
		if !ok {
			return
		}
		var wire struct{ Type, ID, Outcome string }
		if err := json.Unmarshal(line, &wire); err != nil || wire.Type != "result" || wire.Outcome != "ack" {
			t.Fatalf("taken for a success: %q", line)
		}
		if want, ok := readID(json.RawMessage(`"` + wire.ID + `"`)); !ok || id != want {
			t.Errorf("id %d, want %s", id, wire.ID)
		}
	})
}

func TestAcknowledged_ReadsTheUsualAcknowledgement(t *testing.T) {
	for _, line := range []string{
		`{"type":"result","id":"17","outcome":"ack"}` + "\n", `{"type": "result", "id": "17", "outcome": "ack"}` + "\r\n", `{"outcome":"ack","id":"17","type":"result"}`,
	} {
		if id, ok := acknowledged([]byte(line)); !ok || id != 17 {
			t.Errorf("%q: %d, %t", line, id, ok)
		}
	}
}

func BenchmarkMessageFrame(b *testing.B) {
	bodies := map[string]string{
		"small":           `{"order":17,"lines":[{"sku":"a-1","count":3}]}`,
		"256 KiB of JSON": `[` + strings.Repeat(`{"sku":"a-1","count":3},`, 256<<10/24) + `null]`,
		"256 KiB of text": strings.Repeat("All work and no play. ", 256<<10/22),

		"256 KiB of lines":           strings.Repeat("All work and no play.\r\n", 256<<10/23),
		"256 KiB of Cyrillic":        strings.Repeat("Работа не волк. ", 256<<10/28),
		"256 KiB of typography":      strings.Repeat("« Rien — ou presque… » ", 256<<10/31),
		"256 KiB of control codes":   strings.Repeat("\x00\x01\x02", 256<<10/3),
		"256 KiB of line separators": strings.Repeat("A line.\u2028", 256<<10/10),
	}
	for name, body := range bodies {
		b.Run(name, func(b *testing.B) {
			request := Request{
				ID: "0d3adb33f", IdempotencyKey: "work/0d3adb33f", Attempt: 1, Queue: "work", RoutingKey: "work", ContentType: "application/json",
				Headers: map[string]any{"type": `App\Message\Order`, "tries": int32(1)}, Body: []byte(body),
			}
			var frame []byte
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				frame = appendMessage(frame[:0], 17, time.Now(), &request)
			}
		})
	}
}

func BenchmarkFrameSize(b *testing.B) {
	m := message.Message{
		MessageID: "0d3adb33f", RoutingKey: "work", ContentType: "application/json", Body: []byte(`{"order":17,"lines":[{"sku":"a-1","count":3}]}`),
		Headers: map[string]any{"type": `App\Message\Order`, "tries": int32(1), "tenant": "example", "at": time.Now()},
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = (*Process)(nil).FrameSize(&m)
	}
}

func BenchmarkReadAcknowledgement(b *testing.B) {
	line := []byte(`{"type": "result", "id": "17", "outcome": "ack"}` + "\n")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readFrame(line); err != nil {
			b.Fatal(err)
		}
	}
}

// A program's own field, such as Outcome beside outcome, stood for that of the protocol: a failure was a success.
func TestReadFrame_HeedsTheCaseOfNames(t *testing.T) {
	got, err := readFrame([]byte(`{"type":"result","id":"1","outcome":"failure","class":"OutOfStock","Type":"hello","ID":"2","OUTCOME":"ack","Class":1}`))
	if err != nil || got.word != wordResult || got.id != 1 || got.failure == nil || got.failure.Class != "OutOfStock" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := readFrame([]byte(`{"Type":"result","id":"1","outcome":"ack"}`)); !errors.Is(err, errStray) {
		t.Errorf("without a type: %v, want a line that is passed over", err)
	}
}

// A result that is broken was passed over like any other line, and the message ran into its timeout.
func TestReadFrame_TakesNoBrokenResultForAStrayLine(t *testing.T) {
	for _, line := range []string{
		`{"type":"result","id":"1","outcome":`, `{ "type" : "result", "id": "1"`, `{"type":"result"`, "\ufeff" + `{"type":"result",}`,
	} {
		if _, err := readFrame([]byte(line)); err == nil || errors.Is(err, errStray) {
			t.Errorf("%s: %v, want a broken frame", line, err)
		}
	}
	for _, line := range []string{`{"type":"res`, `{"type":"resulting"`, `{"level":"info"`, `{"a":{"type":"result"`} {
		if _, err := readFrame([]byte(line)); !errors.Is(err, errStray) {
			t.Errorf("%s: %v, want a line that is passed over", line, err)
		}
	}
	got, err := readFrame([]byte("\ufeff" + `{"type":"result","id":"1","outcome":"success"}`))
	if err != nil || got.word != wordResult || got.id != 1 {
		t.Errorf("after a byte order mark: %+v, %v", got, err)
	}
}
