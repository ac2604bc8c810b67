package replayer

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	neturl "net/url"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/testbroker"
)

const (
	// urlVariable makes the test's program a replayer on that broker, which kills itself when it comes to a point for the n-th time.
	managementVariable = "REDRIVE_TEST_MANAGEMENT"
	urlVariable        = "REDRIVE_TEST_REPLAYER"
	pointVariable      = "REDRIVE_TEST_POINT"
	timesVariable      = "REDRIVE_TEST_TIMES"
	cancelVariable     = "REDRIVE_TEST_CANCEL"
	rateVariable       = "REDRIVE_TEST_RATE"
	// discardVariable makes it one that discards, for good.
	discardVariable = "REDRIVE_TEST_DISCARD"
	// resumeVariable makes it one that goes on with what is there.
	resumeVariable = "REDRIVE_TEST_RESUME"

	id = "r-0123abcd"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(urlVariable); url != "" {
		os.Exit(beReplayer(url))
	}
	// The tests wait for the broker, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	testbroker.Main(m)
}

// beReplayer carries the replay of the tests out and prints its result.
func beReplayer(url string) int {
	options := newOptions(url, os.Getenv(managementVariable), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	options.Cancel = os.Getenv(cancelVariable) != ""
	options.Settings.Rate, _ = strconv.ParseFloat(os.Getenv(rateVariable), 64)
	if os.Getenv(discardVariable) != "" {
		options.Order.Action, options.Settings = replay.ActionDiscard, nil
	}
	if os.Getenv(resumeVariable) != "" {
		options.Order, options.Settings = nil, nil
	}
	deadly := point(os.Getenv(pointVariable))
	times, _ := strconv.ParseInt(os.Getenv(timesVariable), 10, 64)
	var came atomic.Int64
	options.at = func(p point) {
		if p == deadly && came.Add(1) == times {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it arrives
		}
	}
	result, err := Run(context.Background(), options)
	if err != nil {
		options.Log.Error("the replay has failed", "error", err)
		return 1
	}
	_ = json.NewEncoder(os.Stdout).Encode(result)
	return 0
}

// newOptions are those of a replay of the messages with the header chosen.
func newOptions(url, management string, log *slog.Logger) Options {
	login, err := credentials.FromURLs(url, "")
	if err != nil {
		panic(err)
	}
	target, err := amqp.TargetOf(login, "")
	if err != nil {
		panic(err)
	}
	api, err := neturl.Parse(management)
	if err != nil {
		panic(err)
	}
	password, _ := api.User.Password()
	user := api.User.Username()
	api.User = nil
	port, err := broker.New(broker.Config{ManagementURL: api.String(), Username: user, Password: password, VHost: target.VHost})
	if err != nil {
		panic(err)
	}
	return Options{
		Transport: Transport{
			Broker: port, Owner: "test/default/async", Target: target, Names: compile.Names{Prefix: "async"}, Exchange: "async", Log: log, Holder: "a test",
		},
		ID: id, Order: &replay.Order{Action: replay.ActionReplay, Selection: deadletter.Selection{Where: "message.headers.chosen == true"}},
		Settings: &replay.Settings{MaxInFlight: 200},
	}
}
