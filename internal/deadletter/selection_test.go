package deadletter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

func TestChooser_ChoosesByAllThatASelectionSays(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	letters := make([]Letter, 6) // given up from 12:00 on, one each minute
	for n := range letters {
		letters[n] = Letter{
			Message: retry.Message{ID: strconv.Itoa(n), Queue: []string{"even", "odd"}[n%2]},
			Given:   retry.Given{Cause: fmt.Sprintf("0000000%d", n/2), At: now.Add(time.Duration(n) * time.Minute)},
		}
	}
	for name, c := range map[string]struct {
		selection Selection
		want      string
	}{
		"everything":    {Selection{}, "0 1 2 3 4 5"},
		"causes":        {Selection{Causes: []string{"00000000", "00000002"}}, "0 1 4 5"},
		"IDs":           {Selection{IDs: []string{"3", "1", "none"}}, "1 3"},
		"queues":        {Selection{Queues: []string{"odd"}}, "1 3 5"},
		"since":         {Selection{Since: now.Add(4 * time.Minute)}, "4 5"},
		"before":        {Selection{Before: now.Add(2 * time.Minute)}, "0 1"},
		"an expression": {Selection{Where: "failure.at >= now + duration('3m')"}, "3 4 5"},
		"the oldest":    {Selection{Limit: 2, Queues: []string{"odd"}}, "1 3"},
		"all of it":     {Selection{Where: "failure.cause == '00000001'", Queues: []string{"even"}, Limit: 7}, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			chooser, err := c.selection.Chooser(now)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for n := range letters {
				if chooser.Chooses(&letters[n]) {
					got = append(got, letters[n].Message.ID)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestChooser_CountsWhatWasChosenBeforeForTheLimit(t *testing.T) {
	chooser, err := Selection{Limit: 3}.Chooser(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	chooser.Chosen(2)
	letter := Reader{}.Read(message.Message{MessageID: "a"})
	if !chooser.Chooses(&letter) || chooser.Chooses(&letter) {
		t.Error("it does not choose one more, and only one")
	}
}

func TestChooser_TellsOnWhichMessagesTheExpressionFails(t *testing.T) {
	chooser, err := Selection{Where: "message.headers.none == 1"}.Chooser(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	letter := Reader{}.Read(message.Message{MessageID: "a"})
	if chooser.Chooses(&letter) {
		t.Error("it is chosen")
	}
	if messages, first := chooser.Failed(); messages != 1 || first == nil {
		t.Errorf("%d, %v", messages, first)
	}
}

func TestChooser_RefusesWhatNoCheckpointHolds(t *testing.T) {
	for _, c := range []struct {
		selection Selection
		want      string
	}{
		{Selection{Where: "error.statuss == 1"}, "--where"},
		{Selection{Limit: -1}, "a limit of -1"},
		{Selection{IDs: slices.Repeat([]string{"a"}, 1001)}, "1001 messages are selected"},
		{Selection{Causes: slices.Repeat([]string{"a"}, 65)}, "65 causes"},
		{Selection{Queues: slices.Repeat([]string{"a"}, 65)}, "65 queues"},
	} {
		if _, err := c.selection.Chooser(time.Now()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.selection, err)
		}
	}
}
