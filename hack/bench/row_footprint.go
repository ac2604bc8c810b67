package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
)

const (
	// idleMemory and startTime are the limits.
	idleMemory = 25.0
	startTime  = 300 * time.Millisecond
	// calm is how long an idle worker is left alone before it is measured.
	calm = 3 * time.Second
)

// footprint measures the worker's own program: its memory, idle and under load, and the time from its start to the first message.
func footprint(ctx context.Context, b *bench) (_ []result, err error) {
	program := filepath.Join(b.folder, "worker")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/worker") //nolint:gosec // ours
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the worker: %w: %s", err, output)
	}
	server, err := serve()
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Close() }()
	s, err := b.broker.setUp(ctx, play{concurrency: 100, handler: v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: server.url}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.tearDown(context.WithoutCancel(ctx))) }()
	var all []footprints
	for range b.rounds {
		f, err := b.trace(ctx, s, server, program)
		if err != nil {
			return nil, err
		}
		b.tellf("first message after %.0f ms, %.1f MiB idle, %.1f MiB under load", f.start, f.idle, f.loaded)
		all = append(all, f)
	}
	return []result{
		cheaper("memory: worker idle, at most 25 MiB (MiB resident)", idleMemory, median(all, func(f *footprints) float64 { return f.idle }), 1),
		cheaper("memory: worker under load, http, concurrency 100 (MiB resident)", 0, median(all, func(f *footprints) float64 { return f.loaded }), 0),
		cheaper("start: from the worker's start to the first message, at most 300 ms (ms)",
			float64(startTime.Milliseconds()), median(all, func(f *footprints) float64 { return f.start }), 1),
	}, nil
}

// footprints of one process: milliseconds and MiB.
type footprints struct{ start, idle, loaded float64 }

// trace runs one worker: it begins with one message that waits, then it has nothing to do, then much.
func (b *bench) trace(ctx context.Context, s *stage, server *partner, program string) (f footprints, err error) {
	if err := s.fill(ctx, 1); err != nil {
		return f, err
	}
	server.expect(1)
	began := time.Now()
	w, err := s.start(ctx, program, b.folder)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.await(ctx, server.done); err != nil {
		return f, fmt.Errorf("the first message: %w", err)
	}
	f.start = float64(time.Since(began).Microseconds()) / 1000
	time.Sleep(calm) // it is the calm that is measured
	if f.idle, err = w.memory("VmRSS"); err != nil {
		return f, err
	}
	messages := b.messages / 2
	server.expect(messages)
	if err := s.fill(ctx, messages); err != nil {
		return f, err
	}
	if err := w.await(ctx, server.done); err != nil {
		return f, fmt.Errorf("the load: %w", err)
	}
	f.loaded, err = w.memory("VmHWM")
	return f, err
}

// workerProcess is the worker's program at work.
type workerProcess struct {
	*exec.Cmd

	log   bytes.Buffer
	ended chan error
}

// start starts the worker's program on a stage, with files as a pod has them.
func (s *stage) start(ctx context.Context, program, folder string) (*workerProcess, error) {
	config, err := compile.Encode(s.config)
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	login, err := url.Parse(s.url())
	if err != nil {
		return nil, errors.New("the broker's URL is not a URL")
	}
	password, _ := login.User.Password()
	files := map[string]string{
		"config/config.json": string(config), "broker/host": login.Hostname(), "broker/port": login.Port(),
		"broker/username": login.User.Username(), "broker/password": password, "broker/vhost": s.vhost,
	}
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			return nil, fmt.Errorf("write the worker's files: %w", err)
		}
	}
	listen, err := testbroker.FreeAddress()
	if err != nil {
		return nil, err
	}
	w := &workerProcess{ended: make(chan error, 1)}
	w.Cmd = exec.CommandContext(ctx, program, "--config", filepath.Join(folder, "config/config.json"), //nolint:gosec // what was built
		"--credentials", filepath.Join(folder, "broker"), "--listen", listen)
	w.Stderr = &w.log
	if err := w.Start(); err != nil {
		return nil, fmt.Errorf("start the worker: %w", err)
	}
	go func() { w.ended <- w.Wait() }()
	return w, nil
}

// await waits for a sign, and fails where the worker ends before it.
func (w *workerProcess) await(ctx context.Context, sign <-chan struct{}) error {
	select {
	case <-sign:
		return nil
	case err := <-w.ended:
		w.ended <- err
		return fmt.Errorf("the worker ended: %w: %s", err, w.log.String())
	case <-time.After(longestRun):
		return fmt.Errorf("not within %s: %s", longestRun, w.log.String())
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the user's interrupt
	}
}

func (w *workerProcess) stop() error {
	_ = w.Process.Signal(syscall.SIGTERM)
	return <-w.ended
}

// memory is a line of the process's status, in MiB.
func (w *workerProcess) memory(line string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("the worker's memory, which only Linux tells: %w", err)
	}
	for text := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(text, line+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err //nolint:wrapcheck // the kernel's own numbers
		}
	}
	return 0, fmt.Errorf("the worker's memory: /proc has no %s", line)
}
