package deadletter_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/message"
)

// each has a value of each type that RabbitMQ's client reads, and of the odd ones.
func each() map[string]any {
	values := map[string]any{
		"nothing": nil, "bool": true, "int8": int8(-5), "uint8": uint8(200), "int16": int16(-300), "uint16": uint16(60000), "int32": int32(math.MinInt32),
		"uint32": uint32(math.MaxUint32), "int64": int64(math.MaxInt64), "float32": float32(0.1), "float64": 0.1, "infinite": math.Inf(-1),
		"decimal": message.Decimal{Scale: 2, Value: -1050}, "text": "ten € <b>", "broken text": "\xff\xfe", "bytes": []byte{0, 1, 255}, "no bytes": []byte{},
		"time": time.Unix(1700000000, 0), "milliseconds": time.Unix(1700000000000, 0), "list": []any{int32(1), []any{}, map[string]any{"deep": "er"}},
		"": "a name of no letters",
	}
	values["table"] = map[string]any{"all": maps.Clone(values)}
	return values
}

func export(t *testing.T, m message.Message) []byte {
	t.Helper()
	reader := deadletter.Reader{Names: compile.Names{Prefix: "async"}, Now: time.Now()}
	letter := reader.Read(m)
	line, err := letter.Export(nil)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func TestImport_UndoesExport(t *testing.T) {
	for name, body := range map[string][]byte{"text": []byte(`{"order": 1187}`), "binary": {0xff, 0, 0xfe}, "nothing": nil, "line feeds": []byte("a\nb\r\n")} {
		t.Run(name, func(t *testing.T) {
			m := message.Message{
				ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 9, CorrelationID: "c", ReplyTo: "r", Expiration: "60000",
				MessageID: "m", Timestamp: time.Unix(1700000000, 0).UTC(), Type: "t", UserID: "u", AppID: "a", Headers: each(), Body: body,
				Exchange: "async.failed", RoutingKey: "orders",
			}
			line := export(t, m)
			if bytes.Contains(line, []byte("\n")) {
				t.Fatal("it has more than one line")
			}
			got, _, err := deadletter.Import(line)
			if err != nil {
				t.Fatal(err)
			}
			if len(body) == 0 {
				got.Body, m.Body = nil, nil
			}
			if !reflect.DeepEqual(got, m) {
				t.Errorf("got  %+v\nwant %+v", got, m)
			}
		})
	}
}

func TestImport_KeepsATimestampThatIsNoDate(t *testing.T) {
	m := message.Message{MessageID: "m", Timestamp: time.Unix(1700000000000, 0)}
	got, _, err := deadletter.Import(export(t, m))
	if err != nil || !got.Timestamp.Equal(m.Timestamp) {
		t.Errorf("%v, %v", got.Timestamp, err)
	}
}

func TestImport_RefusesWhatIsNoLineOfAnExport(t *testing.T) {
	const secret = "hidden-token"
	whole := string(export(t, message.Message{MessageID: "m", Headers: map[string]any{"authorization": secret}, Body: []byte(secret)}))
	for name, c := range map[string]struct{ line, want string }{
		"half a line":      {whole[:len(whole)-20], "no JSON"},
		"another object":   {`{"a": "` + secret + `"}`, "no key"},
		"a list":           {`["` + secret + `"]`, "another type"},
		"no letter":        {strings.Replace(whole, `{"S":"`+secret+`"}`, `"`+secret+`"`, 1), "another type"},
		"another letter":   {strings.Replace(whole, `{"S":`, `{"Q":`, 1), `"authorization": it is no value`},
		"a number as text": {strings.Replace(whole, `{"S":`, `{"l":`, 1), `"authorization": it is no value`},
		"two values":       {strings.Replace(whole, `{"S":`, `{"V":null,"S":`, 1), `"authorization": it is no value`},
		"two bodies":       {strings.Replace(whole, `"body":`, `"bodyBase64":"","body":`, 1), "body and bodyBase64"},
		"a body in base64": {strings.Replace(whole, `"body":`, `"bodyBase64":`, 1), "no base64"},
		"unreadable":       {strings.Replace(whole, `"reason":"`, `"reason":"unreadable","was":"`, 1), "could not be read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := deadletter.Import([]byte(c.line))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	for _, number := range []string{
		`{"b":128}`, `{"B":-1}`, `{"u":65536}`, `{"l":1.5}`, `{"T":"x"}`, `{"d":"x"}`, `{"f":1}`, `{"t":1}`, `{"x":"-"}`, `{"D":{"scale":256,"value":1}}`,
		`{"A":[1]}`, `{"A":{}}`, `{"F":[]}`, `{"F":{"a":1}}`, `{}`,
	} {
		line := strings.Replace(whole, `{"S":"`+secret+`"}`, number, 1)
		if _, _, err := deadletter.Import([]byte(line)); err == nil || !json.Valid([]byte(line)) {
			t.Errorf("%s: %v", number, err)
		}
	}
}

func TestImport_RefusesMasks(t *testing.T) {
	letter := deadletter.Reader{Now: time.Now()}.Read(message.Message{MessageID: "m"})
	redactor := deadletter.NewRedactor(nil)
	line, err := letter.Export(&redactor)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := deadletter.Import(line); !errors.Is(err, deadletter.ErrMasked) {
		t.Error(err)
	}
}

func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"key":"k","properties":{},"headers":{"a":{"A":[{"F":{"b":{"D":{"scale":1,"value":2}}}}]}},"body":"x"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, _, err := deadletter.Import(line)
		if err != nil {
			return
		}
		again, _, err := deadletter.Import(export(t, m))
		if err != nil && !strings.Contains(err.Error(), "could not be read") {
			t.Errorf("what it has read cannot be written and read again: %v", err)
		}
		if err == nil && message.HeaderSize(again.Headers) > message.HeaderSize(m.Headers) {
			t.Errorf("headers grow: %v, %v", m.Headers, again.Headers)
		}
	})
}
