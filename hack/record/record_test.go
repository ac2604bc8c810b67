package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The tests of alerts and dashboard trust config/prometheus/testdata/exported.txt: here is what a real run exports.
func TestRecord_ExportsWhatIsListedAndAllKindsOfQueues(t *testing.T) {
	if testing.Short() {
		return // it needs a RabbitMQ and an API server
	}
	t.Chdir("../..")
	file := filepath.Join(t.TempDir(), "record.jsonl")
	if err := record(t.Context(), file, 12*time.Second); err != nil {
		t.Fatal(err)
	}
	listed, seen := listing(t), map[string]bool{}
	for _, one := range scrapes(t, file) {
		for name, labels := range one {
			known, there := listed[name]
			if !there {
				t.Errorf("%s is exported and not listed", name)
			}
			for label, values := range labels {
				if !known[label] {
					t.Errorf("%s has a label %s that is not listed", name, label)
				}
				for _, value := range values {
					seen[name+" "+label+" "+value] = true
				}
			}
		}
	}
	for _, want := range []string{
		"redrive_queue_messages role work", "redrive_queue_messages role lane", "redrive_queue_messages role failure",
		"redrive_queue_messages role quarantine", "redrive_transport_condition condition Ready", "redrive_published_config_info transport orders",
		"redrive_messages_handled_total outcome succeeded", "redrive_connection_up role publish",
		"leader_election_master_status name " + leaseName, "controller_runtime_reconcile_total controller transport",
	} {
		if !seen[want] {
			t.Errorf("no target exports %s", want)
		}
	}
}

// listing is which labels a metric may have.
func listing(t *testing.T) map[string]map[string]bool {
	t.Helper()
	data, err := os.ReadFile("config/prometheus/testdata/exported.txt")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]map[string]bool{}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		labels := map[string]bool{}
		for _, label := range words[2:] {
			labels[label] = true
		}
		listed[words[1]] = labels
	}
	return listed
}

// scrapes are the values of labels, by metric and label, one map for each scrape.
func scrapes(t *testing.T, file string) []map[string]map[string][]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]map[string][]string
	decoder := json.NewDecoder(bytes.NewReader(data))
	for {
		var one scrape
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(one.Text))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]map[string][]string{}
		for name, family := range families {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, part)
			}
			if found[name] == nil {
				found[name] = map[string][]string{}
			}
			for _, metric := range family.GetMetric() {
				for _, pair := range metric.GetLabel() {
					if pair.GetName() != "le" { // of a histogram
						found[name][pair.GetName()] = append(found[name][pair.GetName()], pair.GetValue())
					}
				}
			}
		}
		all = append(all, found)
	}
}
