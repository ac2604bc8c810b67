package deadletter

import (
	"testing"

	"redrive.dev/redrive/internal/retry"
)

func TestTemplate_ReplacesWhatDiffersBetweenMessages(t *testing.T) {
	for text, want := range map[string]string{
		"order 1187 not found":                                 "order <n> not found",
		"order 3f2504e0-4f89-11d3-9a0c-0305e82c3301 is gone":   "order <uuid> is gone",
		"no mailbox for ann.smith+x@shop.example":              "no mailbox for <email>",
		"POST https://partner.example/v1/orders/17?x=1: 503":   "POST <url>: <n>",
		"not before 2026-11-28T12:03:04.5Z, nor on 2026-11-29": "not before <date>, nor on <date>",
		"dial tcp 10.0.12.7:8080: connection refused":          "dial tcp <ip>: connection refused",
		"dial tcp [fd00::1]:8080: i/o timeout":                 "dial tcp <ip>: i/o timeout",
		"open /var/lib/shop/17.json: denied":                   "open <path>: denied",
		`field "name" of 'item' is missing`:                    "field <s> of <s> is missing",
		"commit 9fceb02d0ae5 and 0x7f33":                       "commit <hex> and <hex>",
		"took 1,204.5 seconds":                                 "took <n> seconds",
		"a decade of deadbeef":                                 "a decade of deadbeef",
		"two\n lines\t and \x1b[31mred":                        "two lines and [<n>mred",
		"":                                                     "",
	} {
		if got := Template(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// A cause must stay what it is: people write it down, and filters name it.
func TestCause_IsFixed(t *testing.T) {
	given := retry.Given{Reason: "MaxRetries", Strategy: "slow", Source: SourceWorker}
	last := retry.Failure{Source: retry.SourceHandler, Status: 503, Class: "unavailable", Message: "order 1187 is busy"}
	if got := causeOf(given, last, ""); got != "613c48d3" {
		t.Errorf("got %s", got)
	}
	if got := causeOf(retry.Given{Reason: "expired", Source: SourceBroker}, retry.Failure{}, "work"); got != "69445ee5" {
		t.Errorf("got %s", got)
	}
	same := last
	same.Message = "order 9 is busy"
	if causeOf(given, same, "") != causeOf(given, last, "") {
		t.Error("another order is another cause")
	}
	for name, change := range map[string]func(*retry.Given, *retry.Failure){
		"reason":   func(g *retry.Given, _ *retry.Failure) { g.Reason = "MaxAge" },
		"strategy": func(g *retry.Given, _ *retry.Failure) { g.Strategy = "" },
		"source":   func(_ *retry.Given, f *retry.Failure) { f.Source = retry.SourceTimeout },
		"status":   func(_ *retry.Given, f *retry.Failure) { f.Status = 500 },
		"class":    func(_ *retry.Given, f *retry.Failure) { f.Class = "busy" },
		"message":  func(_ *retry.Given, f *retry.Failure) { f.Message = "order 1187 is late" },
	} {
		other, failure := given, last
		change(&other, &failure)
		if causeOf(other, failure, "") == causeOf(given, last, "") {
			t.Errorf("another %s is the same cause", name)
		}
	}
}

func TestCauses_CountWhatFailedAlike(t *testing.T) {
	var causes Causes
	entry := func(cause, queue string) Entry {
		return Entry{Cause: cause, Queue: queue, Reason: "r", Source: SourceBroker, Explanation: "e"}
	}
	for i := range 1500 {
		causes.Add(entry(string(rune('a'+i%26))+string(rune('a'+i/26)), "q"))
	}
	for range 3 {
		causes.Add(entry("aa", "other"))
	}
	list := causes.List()
	if len(list) != maxCauses+1 || list[0].ID != OtherCauses || list[0].Messages != 500 || list[0].Error != "" {
		t.Errorf("%d causes, the first %+v", len(list), list[0])
	}
	if list[1].ID != "aa" || list[1].Messages != 4 || len(list[1].Queues) != 2 || list[1].Error != "e" {
		t.Errorf("the second %+v", list[1])
	}
}
