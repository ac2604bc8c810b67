package worker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"redrive.dev/redrive/internal/compile"
)

// lookAgain is the time after which a folder is read even if no change was announced: some file systems announce none.
const lookAgain = 30 * time.Second

// ReadConfig reads an encoded configuration from a file.
func ReadConfig(path string) (compile.Config, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the path is the operator's, by flag
	if err != nil {
		return compile.Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	config, err := compile.Decode(data)
	if err != nil {
		return compile.Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// FollowConfig reloads the worker when the file changes, until ctx ends. What cannot be read or taken over is logged once, and
// the configuration in force stays.
func (w *Worker) FollowConfig(ctx context.Context, path string) {
	refused := ""
	w.followFolder(ctx, filepath.Dir(path), func() { refused = w.follow(path, refused) })
}

// followFolder calls look when something in a folder may have changed, until ctx ends. The folder is watched, not its files:
// the kubelet swaps a symbolic link beside them. One that cannot be watched is looked at from time to time.
func (w *Worker) followFolder(ctx context.Context, dir string, look func()) {
	var events <-chan fsnotify.Event
	var faults <-chan error
	watcher, err := watch(dir)
	if err == nil {
		defer func() { _ = watcher.Close() }()
		events, faults = watcher.Events, watcher.Errors
	} else {
		w.options.Log.Warn("a folder cannot be watched: its changes are seen a little later; where too many are watched on this machine, "+
			"raise its limit fs.inotify.max_user_instances or fs.inotify.max_user_watches", "folder", dir, "within", lookAgain, "error", err)
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-faults:
			w.options.Log.Warn("watching a folder", "folder", dir, "error", err)
			continue
		case <-events:
		case <-tick.C:
		}
		look()
	}
}

func watch(dir string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	if err := watcher.Add(dir); err != nil {
		_ = watcher.Close()
		return nil, err //nolint:wrapcheck // as above
	}
	return watcher, nil
}

// follow reads and takes over the configuration once; it returns the text of the failure, "" if there was none.
func (w *Worker) follow(path, refused string) string {
	config, err := ReadConfig(path)
	if err == nil {
		err = w.Reload(config)
	} else {
		w.options.Metrics.configErrors.Inc()
	}
	if err == nil {
		return ""
	}
	if err.Error() != refused {
		w.options.Log.Error("failed to reload configuration; keeping the previous one", "error", err, "hash", w.ConfigHash())
	}
	return err.Error()
}
