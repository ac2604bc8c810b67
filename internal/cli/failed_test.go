package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// failed runs a command of failed in the cluster. It fails the test if a password is shown.
func (s *shop) failed(args ...string) (code int, out, errs string) {
	s.t.Helper()
	code, out, errs = s.command(s.t, "", append([]string{"failed", args[0], "--kubeconfig", s.kubeconfig}, args[1:]...)...)
	if text := out + errs; strings.Contains(text, s.password()) && s.password() != "guest" {
		s.t.Errorf("a password is shown:\n%s", text)
	}
	return code, out, errs
}

// giveUp publishes messages as workers leave them, one that a consumer rejects, one that expires, and a retry whose queue is gone.
func (s *shop) giveUp() {
	s.t.Helper()
	at := time.Now().Add(-time.Hour).UnixMilli()
	order := func(id, text string) amqp091.Publishing {
		return amqp091.Publishing{
			MessageId: id, Type: "order.paid", ContentType: "application/json", DeliveryMode: amqp091.Persistent,
			Body: []byte(`{"order": ` + id + `, "customer": {"email": "ann@shop.example"}}`),
			Headers: amqp091.Table{
				"partner": "acme", "authorization": "Bearer hidden-token", "redrive-reason": "MaxRetries", "redrive-explanation": "3 of 3 retries used",
				"redrive-queue": "test", "redrive-failed-at": at, "redrive-first-failure": at - 60_000, "redrive-attempts": int64(4), "redrive-retries": int64(3),
				"redrive-error-source": "Handler", "redrive-error-status": int64(503), "redrive-error-class": "unavailable", "redrive-error-message": text,
				"redrive-exchange": "async", "redrive-routing-key": "test",
				"redrive-history": `[{"attempt":1,"at":1700000000000,"source":"Timeout","message":"no answer","delay":5000},{"attempt":4,"at":1700000009000,"source":"Handler","status":503}]`,
			},
		}
	}
	s.amqp.Publish("async.failed", "", order("1187", "order 1187 is busy"), order("2", "order 2 is busy"), amqp091.Publishing{
		MessageId: "3", ContentType: "text/plain", Body: []byte("plain \x1b[31mred"),
		Headers: amqp091.Table{"redrive-reason": "Strategy", "redrive-strategy": "rejected", "redrive-queue": "lost", "redrive-failed-at": at, "redrive-error-source": "Timeout"},
	})
	s.amqp.Publish("async", "lost", amqp091.Publishing{MessageId: "rejected"})
	testtransport.Eventually(s.t, "the message to come", func() bool {
		delivery, ok, err := s.amqp.Channel().Get("lost", false)
		if err != nil {
			s.t.Fatal(err)
		}
		return ok && delivery.Reject(false) == nil
	})
	s.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "expired", Expiration: "0"})
	s.amqp.Publish("async.return", "gone", amqp091.Publishing{MessageId: "gone", Headers: amqp091.Table{"redrive-attempts": int64(1)}})
	testtransport.Eventually(s.t, "all messages to be in the failure queue", func() bool { return s.amqp.Ready("async.failed") == 6 })
}

func TestFailed_ShowsWhatWasGivenUpAndChangesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.giveUp()

	code, out, errs := s.failed("groups", "async")
	out = regexp.MustCompile(`as of \S+ \(\S+ s\)`).ReplaceAllString(out, "as of now")
	want := `6 failed messages in async.failed, as of now
CAUSE     MESSAGES  QUEUES  REASON              FIRST  LAST  ERROR
`
	if code != exitOK || errs != "" || !strings.HasPrefix(out, want) {
		t.Fatalf("exit code %d, %s\n%s", code, errs, out)
	}
	for _, line := range []string{
		`2  test    MaxRetries +60m +60m  503 unavailable: order <n> is busy`, `1  lost    Strategy, rejected +60m +60m  Timeout`,
		`1  lost    rejected +\d+s +\d+s  a consumer rejected it`, `1  test    expired +\d+s +\d+s  it expired in its queue`, `1  gone    unroutable +\? +\?  no queue took it`,
	} {
		if !regexp.MustCompile(`(?m)^[0-9a-f]{8} +` + line).MatchString(out) {
			t.Errorf("there is no %s in\n%s", line, out)
		}
	}

	code, out, errs = s.failed("ls", "async", "--where", "message.headers.partner == 'acme'", "-o", "json")
	var list struct {
		Messages, Chosen int
		Failed           []struct {
			Key, ID, Queue, Cause, Exchange string
			Attempts                        int
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitOK || list.Messages != 6 || list.Chosen != 2 || len(list.Failed) != 2 || list.Failed[0].ID != "2" || list.Failed[0].Attempts != 4 {
		t.Fatalf("exit code %d, %v, %+v", code, err, list)
	}
	if !strings.Contains(errs, "--where fails on 4 messages, which are left out: --where, 1:16: no such key") || strings.Contains(out, "hidden") {
		t.Errorf("%s\n%s", errs, out)
	}
	key := list.Failed[1].Key

	code, out, errs = s.failed("show", "async", key[:6])
	out = regexp.MustCompile(` +`).ReplaceAllString(out, " ")
	for _, part := range []string{
		"\nReason MaxRetries\n", "\nLast error 503 unavailable: order 1187 is busy\n", "\nExchange async\n", "\nRouting key test\n", "\n authorization ********\n", "\n partner acme\n",
		"\n 1 2023-11-14T22:13:20Z retry after 5s Timeout: no answer\n", `"email": "ann@shop.example"`, "\nMessage ID 1187\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("there is no %q in\n%s%s", part, out, errs)
		}
	}
	if code != exitOK || strings.Contains(out, "redrive-") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if _, out, _ = s.failed("show", key, "--reveal"); !strings.Contains(out, "Bearer hidden-token") {
		t.Errorf("revealed:\n%s", out)
	}
	if _, out, _ = s.failed("show", key, "--reveal", "--raw"); out != `{"order": 1187, "customer": {"email": "ann@shop.example"}}` {
		t.Errorf("raw: %s", out)
	}

	for range 3 {
		s.failed("ls", "async")
	}
	got := s.amqp.TakeAll("async.failed")
	if len(got) != 6 || got[0].MessageId != "1187" || got[1].MessageId != "2" {
		var ids []string
		for i := range got {
			ids = append(ids, got[i].MessageId)
		}
		t.Errorf("left are %q", ids)
	}
	if writes := s.writes.Load(); writes != 0 {
		t.Errorf("%d writes to the management API", writes)
	}
}

func TestFailed_ExportsWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.giveUp()
	file := filepath.Join(t.TempDir(), "failed.ndjson")
	code, _, errs := s.failed("export", "async", "-o", file)
	text, err := os.ReadFile(file)
	if err != nil || code != exitOK || errs != "6 of 6 failed messages in async.failed are written\n" {
		t.Fatalf("exit code %d, %v, %s", code, err, errs)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 6 || !strings.Contains(lines[0], `"authorization":{"S":"Bearer hidden-token"}`) || !strings.Contains(lines[0], `"redrive-attempts":{"l":4}`) ||
		!strings.Contains(lines[0], `"body":"{\"order\": 1187`) || strings.Count(string(text), `"x-death":{"A":[{"F":{`) != 2 {
		t.Errorf("%d lines:\n%s", len(lines), text)
	}
	code, out, _ := s.failed("export", "async", "-o", "-", "--redacted", "--queue", "test")
	if code != exitOK || strings.Count(out, "\n") != 3 || strings.Contains(out, "hidden-token") || !strings.Contains(out, `"redacted":true`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}

	if code, _, errs = s.failed("export", "async", "-o", filepath.Join(file, "below")); code != exitStatusError || !strings.Contains(errs, "write the export") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	s.refuse(true)
	other := file + ".other"
	if code, _, errs = s.failed("export", "async", "-o", other); code != exitStatusError || !strings.Contains(errs, "management API") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if left, _ := filepath.Glob(other + "*"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// limit gives the failure queue a delivery limit by a policy.
func (s *shop) limit(policy string, priority, limit int) {
	s.t.Helper()
	testbroker.Shared(s.t).SetPolicy(s.t, s.vhost, policy, `^async\.failed$`, "queues", priority, map[string]any{"delivery-limit": limit})
}

// pin gives it the one of the operator, and waits until the management API tells of it.
func (s *shop) pin() {
	s.t.Helper()
	s.limit("redrive.async:failure:async.failed", 1000, 2147483647)
	testtransport.Eventually(s.t, "the policy to apply", func() bool {
		code, _, _ := s.failed("ls", "async")
		return code == exitOK
	})
	s.writes.Store(0)
}

func TestFailed_RefusesWhatWouldLoseMessages(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	s.amqp.Publish("async.failed", "", amqp091.Publishing{MessageId: "1"})
	_, err := s.amqp.Channel().QueueDeclare("async.failed.lock", false, false, true, false, amqp091.Table{
		"x-queue-type": "classic", "redrive-holder": "redrive failed, ann@laptop, since 10:03",
	})
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.failed("ls", "async"); code != exitStatusError || !strings.Contains(errs, "another look at the failure queue is under way: redrive failed, ann@laptop, since 10:03") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if _, err := s.amqp.Channel().QueueDelete("async.failed.lock", false, false, false); err != nil {
		t.Fatal(err)
	}
	s.limit("theirs", 5000, 20)
	for range 25 { // RabbitMQ obeys the policy at once, and shows some seconds later that the queue does
		code, _, errs := s.failed("ls", "async")
		if code != exitStatusError || !strings.Contains(errs, `needs a delivery-limit of at least 1000000`) || !strings.Contains(errs, `the RabbitMQ policy "theirs" applies`) {
			t.Fatalf("exit code %d, %s", code, errs)
		}
	}
	if got := s.amqp.TakeAll("async.failed"); len(got) != 1 {
		t.Errorf("%d messages are left", len(got))
	}
}

func TestFailed_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.pin()
	for want, args := range map[string][]string{
		`there is no Transport "asink" in namespace`:                              {"ls", "asink"},
		"--where, 1:8: there is no field nothing":                                 {"ls", "async", "--where", "failure.nothing == ''"},
		"-o xml: the formats are table, wide and json":                            {"ls", "async", "-o", "xml"},
		"--limit: at least 1":                                                     {"ls", "async", "--limit", "0"},
		`"3c5": a key has 12 digits, and at least the first 4 of them are needed`: {"show", "async", "3c5"},
		"there is no message 3c55 among the 0 in async.failed":                    {"show", "async", "3c55"},
		"--raw prints the body as it is, and needs --reveal":                      {"show", "3c55", "--raw"},
		"-o: name a file, or - for stdout":                                        {"export", "async"},
		"name one Transport":                                                      {"groups", "a", "b"},
		"unknown flag: --all":                                                     {"groups", "--all"},
	} {
		if code, out, errs := s.failed(args...); code != exitStatusError || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: exit code %d, %s%s", args, code, out, errs)
		}
	}
}
