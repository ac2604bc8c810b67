package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"time"
)

// latenessTest kills a broker that has 130 quorum queues under traffic, six times, and says of each kill how long after the broker's start
// the last message that was due came out of its lane.
const latenessTest = "TestLanes_DoNotStandStillAfterAKill"

var (
	lastCame = regexp.MustCompile(`the last message came (\S+) after the start`)
	cameIn   = regexp.MustCompile(`all have to come within (\S+) of RabbitMQ (\S+)`)
)

// lateness runs the test that kills a broker of its own, of the version that this run has, and takes its figures.
func lateness(ctx context.Context, b *bench) ([]result, error) {
	test := exec.CommandContext(ctx, "go", "test", "-count", "1", "-v", "-timeout", "20m", "-run", "^"+latenessTest+"$", "./internal/local")
	test.Env = append(os.Environ(), "REDRIVE_LONG=1")
	var output bytes.Buffer
	test.Stdout, test.Stderr = &output, &output
	failed := test.Run()
	limit := cameIn.FindStringSubmatch(output.String())
	times := lastCame.FindAllStringSubmatch(output.String(), -1)
	if limit == nil || len(times) == 0 {
		return nil, fmt.Errorf("%s: %w: %s", latenessTest, failed, output.String())
	}
	atMost, err := time.ParseDuration(limit[1])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", latenessTest, err)
	}
	worst := time.Duration(0)
	for _, found := range times {
		last, err := time.ParseDuration(found[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", latenessTest, err)
		}
		b.tellf("the last message came %s after the start", last)
		worst = max(worst, last)
	}
	if failed != nil {
		return nil, fmt.Errorf("%s: %w: %s", latenessTest, failed, output.String())
	}
	return []result{
		cheaper(fmt.Sprintf("lateness: last message after a kill of RabbitMQ %s, worst of %d, at most %s (s after its start)", limit[2], len(times), atMost),
			atMost.Seconds(), worst.Seconds(), 1),
	}, nil
}
