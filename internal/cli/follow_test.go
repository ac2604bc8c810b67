package cli

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

func TestFollowing_TellsOnceOfGoneFilesThatItCannotWatch(t *testing.T) {
	source, err := newSource(Environment{}, filepath.Join(t.TempDir(), "gone.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &following{source: source, log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		go f.loop(ctx, nil)
		time.Sleep(4 * lookAgain) // of the clock of this test, which takes no time
		cancel()
		synctest.Wait()
		if text := log.String(); strings.Count(text, "are invalid") != 1 {
			t.Errorf("that the file is gone is not told, or more than once: %s", text)
		}
	})
}

// A log in the folder, or the files of a database, are written to all the time.
func TestFollowing_ReadsTheFilesAlsoInABusyFolder(t *testing.T) {
	source, err := newSource(Environment{}, filepath.Join(t.TempDir(), "gone.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &following{source: source, log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		events := make(chan fsnotify.Event)
		go f.loop(ctx, &fsnotify.Watcher{Events: events})
		for began := time.Now(); time.Since(began) < 2*lookAgain; time.Sleep(settleFor / 2) {
			events <- fsnotify.Event{Name: "redrive.log", Op: fsnotify.Write}
		}
		cancel()
		synctest.Wait()
		if text := log.String(); !strings.Contains(text, "are invalid") {
			t.Error("the files were not read")
		}
	})
}
