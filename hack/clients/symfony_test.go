//go:build unix

package clients_test

import (
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/testtransport"
)

const symfonyManifest = `
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: partner}
spec:
  maxRetries: 3
  backoff: {type: Constant, delay: 200ms}
---
apiVersion: redrive.dev/v1alpha1
kind: Transport
metadata: {name: async}
spec:
  broker: {secretRef: {name: rabbitmq}}
  exchange: {name: async, type: Direct}
  retryPolicyRef: {name: partner}
  queues:
  - {name: async, bindingKeys: [async]}
  workers:
  - name: default
    concurrency: 20
    handler:
      image: registry.example.com/shop/app:1.0
      process:
        command: [php, bin/console, "redrive:consume", async, --concurrency=10]
        processes: 2
`

// TestSymfony_PublishesWhatThePackageHandles publishes with Symfony's AMQP transport and handles with the package redrive/handler.
func TestSymfony_PublishesWhatThePackageHandles(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ, and PHP
	}
	t.Parallel()
	const folder = "symfony"
	count := many(t)
	s := play(t, folder, symfonyManifest)
	dsn := "MESSENGER_DSN=" + dsnOf(t, s.url)
	s.publish(folder, []string{dsn}, "php", "bin/console", "shop:publish", strconv.Itoa(count))

	first, second := map[string]string{}, map[string]string{}
	batches, reasons := map[string]int{}, map[string]string{}
	for i := 1; i <= count; i++ {
		name := func(mode string) string { return fmt.Sprintf("%s-%d", mode, i) }
		first[name("plain")], second[name("plain")] = "1", "1"
		first[name("delayed")], second[name("delayed")] = "1", "1" // by Symfony's own queue, which comes back to the exchange
		first[name("skipped")], second[name("skipped")] = "2", "2" // a listener wants none of the first attempt
		first[name("half")], second[name("half")] = "1", "12"      // what is done is not done again
		first[name("mixed")], second[name("mixed")] = "12", "12"
		first[name("recoverable")], second[name("recoverable")] = "12", "12"
		first[name("hopeless")], second[name("hopeless")] = "1", "1"
		reasons[name("recoverable")], reasons[name("hopeless")] = "Unrecoverable", "Unrecoverable"
		batches[fmt.Sprintf("page-%d", i)] = 1
		if i == 7 { // it fails once
			batches["page-7"] = 2
		}
	}
	var got map[string][]seen
	testtransport.EventuallyWithin(t, within, "all messages to be handled", func() bool {
		got = s.reports()
		return maps.Equal(attempts(got["first"]), first) && maps.Equal(attempts(got["second"]), second) && maps.Equal(times(got["batch"]), batches)
	})
	failed := map[string]string{}
	for _, d := range s.settled(len(reasons)) {
		_, rest, _ := strings.Cut(string(d.Body), `"name":"`)
		name, _, _ := strings.Cut(rest, `"`)
		failed[name], _ = d.Headers["redrive-reason"].(string)
		if len(d.MessageId) != 32 {
			t.Errorf("%s has the message-id %q", name, d.MessageId)
		}
	}
	if !maps.Equal(failed, reasons) {
		t.Errorf("failed %v, want %v", failed, reasons)
	}
	got = s.reports()
	checkSymfonyReports(t, got, count)
	if !maps.Equal(attempts(got["first"]), first) || !maps.Equal(attempts(got["second"]), second) || len(got["elsewhere"]) > 0 {
		t.Errorf("first %v, second %v, elsewhere %v", attempts(got["first"]), attempts(got["second"]), got["elsewhere"])
	}
}

// checkSymfonyReports checks what middleware and listeners have seen.
func checkSymfonyReports(t *testing.T, got map[string][]seen, count int) {
	t.Helper()
	ids := map[string]string{}
	for _, e := range got["envelope"] {
		if e.ID == "" || ids[e.Name] != "" && ids[e.Name] != e.ID {
			t.Errorf("%s has the ids %q and %q", e.Name, ids[e.Name], e.ID)
		}
		ids[e.Name] = e.ID
		if e.Transport != "async" || !e.Consumed && !strings.HasPrefix(e.Name, "page") || e.Redelivered != e.Attempt-1 {
			t.Errorf("middleware saw %+v", e)
		}
	}
	pages := 0
	if count >= 7 {
		pages = 1
	}
	// An attempt of each of plain, delayed, skipped (2, of which one is neither handled nor failed), half (2), mixed (2), recoverable (2), hopeless and page is received, and is handled or failed.
	want := map[string]int{"WorkerMessageReceivedEvent": 12*count + pages, "WorkerMessageHandledEvent": 6 * count, "WorkerMessageFailedEvent": 5*count + pages}
	for event, number := range want {
		if len(got[event]) != number {
			t.Errorf("%d times %s, want %d", len(got[event]), event, number)
		}
	}
	if len(ids) != 8*count {
		t.Errorf("%d messages have an id", len(ids))
	}
}

// times is how often each name was reported.
func times(all []seen) map[string]int {
	found := map[string]int{}
	for _, one := range all {
		found[one.Name]++
	}
	return found
}

// dsnOf is the URL of a broker as Symfony takes it.
func dsnOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("amqp://%s@%s/%s/async", u.User, u.Host, strings.TrimPrefix(u.Path, "/"))
}
