package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// export writes what is in the failure queue into a file, and takes it out there.
func (s *shop) export() (file string) {
	s.t.Helper()
	file = filepath.Join(s.t.TempDir(), "failed.ndjson")
	if code, _, errs := s.failed("export", "async", "-o", file); code != exitOK {
		s.t.Fatalf("exit code %d, %s", code, errs)
	}
	s.amqp.TakeAll("async.failed")
	return file
}

func TestFailed_ImportsWhatWasExportedAsItWas(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.giveUp()
	list := func() map[string]deadletter.Entry {
		var found struct{ Failed []deadletter.Entry }
		code, out, errs := s.failed("ls", "async", "-o", "json")
		if err := json.Unmarshal([]byte(out), &found); err != nil || code != exitOK {
			t.Fatalf("exit code %d, %v, %s", code, err, errs)
		}
		entries := map[string]deadletter.Entry{}
		for _, entry := range found.Failed {
			entries[entry.Key] = entry
		}
		return entries
	}
	before := list()
	file := s.export()

	code, out, errs := s.failed("import", "async", "-i", file, "--plan")
	if code != exitChanges || out != "Plan: import 6 messages from "+file+" into async.failed\nQUEUE  MESSAGES\ngone          1\nlost          2\ntest          3\n" {
		t.Errorf("exit code %d, %s\n%s", code, errs, out)
	}
	if code, _, errs = s.failed("import", "async", "-i", file); code != exitStatusError || !strings.Contains(errs, "--yes") {
		t.Errorf("without a terminal: exit code %d, %s", code, errs)
	}
	if n := s.amqp.Ready("async.failed"); n != 0 {
		t.Fatalf("a plan has imported %d messages", n)
	}
	code, out, errs = s.failed("import", "async", "-i", file, "--yes")
	if code != exitOK || errs != "" || !strings.HasSuffix(out, "6 of 6 messages are in async.failed\n") {
		t.Fatalf("exit code %d, %s\n%s", code, errs, out)
	}
	if after := list(); len(after) != 6 || !reflect.DeepEqual(after, before) {
		t.Errorf("before: %+v\nafter: %+v", before, after)
	}
	if code, _, errs = s.failed("import", "async", "-i", file, "--yes", "--skip", "4"); code != exitOK {
		t.Errorf("exit code %d, %s", code, errs)
	}
	testtransport.Eventually(t, "two more", func() bool { return s.amqp.Ready("async.failed") == 8 })
	if code, _, errs = s.failed("import", "async", "-i", file, "--yes", "--skip", "6"); code != exitStatusError || !strings.Contains(errs, "no message behind the first 6") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestFailed_ImportsNothingOfADamagedFile(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.giveUp()
	masked := filepath.Join(t.TempDir(), "masked.ndjson")
	if code, _, errs := s.failed("export", "async", "-o", masked, "--redacted"); code != exitOK {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	whole := s.export()
	text, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(t.TempDir(), "half.ndjson")
	if err := os.WriteFile(half, text[:len(text)-100], 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		half: "half.ndjson, line 6: it is no line of an export: it is no JSON", masked: "masked.ndjson, line 1: it was exported with --redacted",
		half + ".missing": "no such file", "-": "it is read twice",
	} {
		code, out, errs := s.failed("import", "async", "-i", file, "--yes")
		if code != exitStatusError || out != "" || !strings.Contains(errs, want) || strings.Contains(errs, "hidden-token") {
			t.Errorf("%s: exit code %d, %s\n%s", file, code, errs, out)
		}
	}
	if n := s.amqp.Ready("async.failed"); n != 0 {
		t.Errorf("%d messages are imported", n)
	}
}

// The failure queue has room for some of the messages.
func TestFailed_SaysHowToGoOnWithAnImport(t *testing.T) {
	t.Parallel()
	const many, room = 1000, 3
	s := newShop(t)
	s.pin()
	s.amqp.Publish("async.failed", "", slices.Repeat([]amqp091.Publishing{{MessageId: "m"}}, many)...)
	file := s.export()
	testbroker.Shared(t).SetPolicy(t, s.vhost, "full", `^async\.failed$`, "queues", 2000, map[string]any{"max-length": room, "overflow": "reject-publish"})
	testtransport.Eventually(t, "the policy to apply", func() bool {
		s.amqp.TakeAll("async.failed")
		for range 10 * room {
			confirm, err := s.amqp.Channel().PublishWithDeferredConfirm("async.failed", "", true, false, amqp091.Publishing{})
			if err != nil {
				t.Fatal(err)
			}
			if taken, err := confirm.WaitContext(t.Context()); err == nil && !taken {
				return true
			}
		}
		return false
	})
	s.amqp.TakeAll("async.failed")
	code, out, errs := s.failed("import", "async", "-i", file, "--yes")
	var done int
	if _, err := fmt.Sscan(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:], &done); err != nil || done < room || done == many || code != exitStatusError ||
		!strings.Contains(errs, fmt.Sprintf("message %d is not confirmed", done+1)) || !strings.Contains(errs, fmt.Sprintf("--skip %d", done)) {
		t.Errorf("exit code %d, %d messages, %s\n%s", code, done, errs, out)
	}
	if n := s.amqp.Ready("async.failed"); n < done {
		t.Errorf("%d messages are there, of %d", n, done)
	}
}

func TestFailed_ImportsManyInTheirOrder(t *testing.T) {
	t.Parallel()
	const many = 2000
	s := newShop(t)
	s.pin()
	published := make([]amqp091.Publishing, many)
	for i := range published {
		published[i] = amqp091.Publishing{
			MessageId: strconv.Itoa(i), Body: bytes.Repeat([]byte{0xff, byte(i)}, 20_000), Priority: uint8(i % 5),
			Headers: amqp091.Table{"redrive-reason": "MaxRetries", "redrive-queue": "test", "a": amqp091.Table{"b": []any{int32(i), amqp091.Decimal{Scale: 1, Value: 5}}}},
		}
	}
	s.amqp.Publish("async.failed", "", published...)
	file := s.export()
	if code, out, errs := s.failed("import", "async", "-i", file, "--yes"); code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %s\n%s", code, errs, out)
	}
	got := s.amqp.TakeAll("async.failed")
	if len(got) != many {
		t.Fatalf("%d of %d are there", len(got), many)
	}
	for i, d := range got {
		table, _ := d.Headers["a"].(amqp091.Table)
		values, _ := table["b"].([]any)
		if d.MessageId != strconv.Itoa(i) || !bytes.Equal(d.Body, published[i].Body) || len(values) != 2 || values[0] != int32(i) || d.Priority != published[i].Priority {
			t.Fatalf("message %d is %s, %v, with a body of %d bytes", i, d.MessageId, d.Headers, len(d.Body))
		}
	}
}
