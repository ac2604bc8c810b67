package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"redrive.dev/redrive/internal/testbroker"
)

// managerProcess is the operator.
type managerProcess struct {
	*process

	metrics, pprof string
}

// memoryLimit is GOMEMLIMIT as config/manager sets it.
const memoryLimit = "GOMEMLIMIT=90MiB"

func (c *cluster) startManager(s *settings, poll time.Duration) (*managerProcess, error) {
	metrics, err := testbroker.FreeAddress()
	if err != nil {
		return nil, err
	}
	pprof, err := testbroker.FreeAddress()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(c.file("manager.log"), []string{memoryLimit}, c.file("manager"), "--kubeconfig="+c.kubeconfig,
		"--metrics-secure=false", "--metrics-bind-address="+metrics, "--health-probe-bind-address=0", "--pprof-bind-address="+pprof,
		"--worker-image=redrive-worker", "--poll-interval="+poll.String(), "--concurrency="+strconv.Itoa(s.concurrency))
	if err != nil {
		return nil, err
	}
	return &managerProcess{process: p, metrics: metrics, pprof: pprof}, nil
}

// stop is safe for a manager that was never started.
func (m *managerProcess) stop() error {
	if m == nil {
		return nil
	}
	return m.process.stop()
}

// metric is the sum of the series that begin so; false where the manager does not answer yet.
func (m *managerProcess) metric(ctx context.Context, prefixes ...string) (sums []float64, answers bool, err error) {
	body, answers, err := get(ctx, "http://"+m.metrics+"/metrics")
	if err != nil || !answers {
		return nil, answers, err
	}
	sums = make([]float64, len(prefixes))
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		for i, prefix := range prefixes {
			if line := lines.Text(); strings.HasPrefix(line, prefix) {
				value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
				if err != nil {
					return nil, true, fmt.Errorf("a metric of the manager: %w", err)
				}
				sums[i] += value
			}
		}
	}
	return sums, true, nil
}

func get(ctx context.Context, url string) (body []byte, answers bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, false, fmt.Errorf("ask the manager: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, false, nil // it does not listen yet
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	if err != nil {
		return nil, true, fmt.Errorf("ask the manager: %w", err)
	}
	return body, response.StatusCode == http.StatusOK, nil
}

// profile keeps a profile of the manager, if some are wanted.
func (m *managerProcess) profile(ctx context.Context, s *settings, kind, name string) {
	if s.profiles == "" {
		return
	}
	var body []byte
	err := until(ctx, time.Minute, "a profile", func() (answers bool, err error) {
		body, answers, err = get(ctx, "http://"+m.pprof+"/debug/pprof/"+kind)
		return answers, err
	})
	if err != nil {
		tellf("no profile %s: %v", name, err)
		return
	}
	if err := os.WriteFile(filepath.Join(s.profiles, name+".pprof"), body, 0o600); err != nil {
		tellf("no profile %s: %v", name, err)
	}
}

// usage is what a process has used since its start.
type usage struct {
	cpu time.Duration
	// peak is the most memory that was resident, in MB.
	peak float64
}

// usage reads what Linux tells of the process.
func (m *managerProcess) usage() (u usage, err error) {
	folder := fmt.Sprintf("/proc/%d/", m.command.Process.Pid)
	stat, err := os.ReadFile(folder + "stat") //nolint:gosec // of the kernel
	if err != nil {
		return u, fmt.Errorf("usage of the manager: %w", err)
	}
	// After the name in brackets, the 12th and 13th field are ticks of 10 ms of CPU.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, fmt.Errorf("usage of the manager: %w", err)
		}
		u.cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(folder + "status") //nolint:gosec // of the kernel
	if err != nil {
		return u, fmt.Errorf("usage of the manager: %w", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if fields = strings.Fields(rest); len(fields) == 0 {
		return u, fmt.Errorf("usage of the manager: %sstatus has no VmHWM", folder)
	}
	kib, err := strconv.ParseFloat(fields[0], 64)
	u.peak = kib * 1024 / 1e6
	return u, err //nolint:wrapcheck // the kernel writes numbers
}
