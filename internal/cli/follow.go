package cli

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"redrive.dev/redrive/internal/local"
)

const (
	// settleFor is how long the files must rest before they are read: an editor or a checkout writes in several steps.
	settleFor = 200 * time.Millisecond
	// lookAgain is the time after which the files are read even if no change was announced: some file systems announce none.
	lookAgain = 15 * time.Second
)

// following takes over changed files.
type following struct {
	source *source
	loaded loaded
	needs  needs
	runner *local.Runner
	log    *slog.Logger

	refused string
}

// start follows the files in the background until ctx ends. Where they cannot be watched they are read from time to time.
func (f *following) start(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watchFolders(watcher, f.source.path)
	}
	if err != nil {
		f.log.Warn("the files cannot be watched: changes are seen a little later; where too many are watched on this machine, "+
			"raise its limit fs.inotify.max_user_instances or fs.inotify.max_user_watches", "path", f.source.path, "within", lookAgain, "error", err)
	}
	go func() {
		f.loop(ctx, watcher)
		if watcher != nil {
			_ = watcher.Close()
		}
	}()
}

// loop follows the files until ctx ends. watcher may be nil.
func (f *following) loop(ctx context.Context, watcher *fsnotify.Watcher) {
	var events <-chan fsnotify.Event
	var faults <-chan error
	if watcher != nil {
		events, faults = watcher.Events, watcher.Errors
	}
	look := time.NewTimer(lookAgain)
	defer look.Stop()
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			look.Reset(min(settleFor, time.Until(looked.Add(lookAgain)))) // something else may be written to all the time
		case err := <-faults:
			f.log.Warn("watching the files", "error", err)
		case <-look.C:
			f.reload(ctx)
			if watcher != nil {
				_ = watchFolders(watcher, f.source.path) // folders may be new; a path that is gone was reported by reload
			}
			look.Reset(lookAgain)
			looked = time.Now()
		}
	}
}

// reload reads the files and takes over what has changed. What is not valid is reported once.
func (f *following) reload(ctx context.Context) {
	changed, err := f.take(ctx)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		f.refused = ""
		if changed {
			f.log.Info("changed files taken over", "path", f.source.path)
		}
	case err.Error() != f.refused:
		f.refused = err.Error()
		f.log.Error("the changed files are invalid; keeping the previous ones", "error", err)
	}
}

func (f *following) take(ctx context.Context) (changed bool, err error) {
	next, err := f.source.load(ctx)
	if err != nil {
		return false, err
	}
	if f.loaded.sameAs(next) {
		return false, nil
	}
	brokers, err := f.needs.of(next)
	if err != nil {
		return false, err
	}
	if err := f.runner.Take(next.units, brokers); err != nil {
		return false, err
	}
	f.loaded = next
	advise(f.log, next.units)
	return true, nil
}

func (l loaded) sameAs(other loaded) bool {
	return reflect.DeepEqual(l.set.Transports, other.set.Transports) &&
		reflect.DeepEqual(l.set.RetryPolicies, other.set.RetryPolicies) &&
		reflect.DeepEqual(l.set.Secrets, other.set.Secrets)
}

// watchFolders watches the folder of a file, or a folder with all in it that is not hidden. Folders are watched, not files:
// editors and mounts put a new file in the place of the old one.
func watchFolders(watcher *fsnotify.Watcher, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if !info.IsDir() {
		path = filepath.Dir(path)
		if err := watcher.Add(path); err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
		return nil
	}
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case name != path && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		default:
			return watcher.Add(name)
		}
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	return nil
}
