package handler_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
)

// benchMessages is how many messages each side handles in its turn.
const benchMessages = 500

// BenchmarkProcess handles the same messages twice in one run, by the same program: with the handler, and with the least code that
// a team could write for itself on encoding/json. bare/ours is the share of the bare loop's speed that the handler reaches.
func BenchmarkProcess(b *testing.B) {
	bodies := map[string]string{
		"small":  `{"order":17,"lines":[{"sku":"a-1","count":3}]}`,
		"256KiB": `[` + strings.Repeat(`{"sku":"a-1","count":3,"text":"All work and no play makes Jack a dull boy"},`, 256<<10/77) + `null]`,
	}
	for language, interpreter := range map[string]string{"python": "python3", "php": "php", "node": "node"} {
		for size, body := range bodies {
			b.Run(language+"/"+size, func(b *testing.B) { compareWithBare(b, language, interpreter, body) })
		}
	}
}

func compareWithBare(b *testing.B, language, interpreter, body string) {
	folder, err := filepath.Abs("../../docs/examples/clients/" + language)
	if err != nil {
		b.Fatal(err)
	}
	extension := map[string]string{"python": "py", "php": "php", "node": "mjs"}[language]
	command := []string{interpreter, "testdata/clients/echo." + extension, folder}
	request := handler.Request{
		ID: "0d3adb33f", IdempotencyKey: "work/0d3adb33f", Attempt: 1, Queue: "work", RoutingKey: "work", ContentType: "application/json",
		Headers: map[string]any{"type": `App\Message\Order`}, Body: []byte(body),
	}
	p := startProcess(b, v1alpha1.ProcessHandler{Command: command}, handler.Options{})
	awaitReady(b, p)
	bare := startBare(b, command)
	messages := benchMessages
	if len(body) > 1<<10 {
		messages /= 10
	}
	var times, cpu [2]time.Duration
	sides := []func(){
		func() { bare.exchange(b, &request) },
		func() {
			ctx, cancel := handler.WithTimeout(b.Context(), time.Minute, time.Hour)
			defer cancel()
			if failure := p.Handle(ctx, request); failure != nil {
				b.Fatalf("%+v", failure)
			}
		},
	}
	for b.Loop() {
		for i, side := range sides {
			began, used := time.Now(), cpuTime(b)
			for range messages {
				side()
			}
			times[i] += time.Since(began)
			cpu[i] += cpuTime(b) - used
		}
	}
	b.ReportMetric(times[0].Seconds()/times[1].Seconds(), "bare/ours")
	b.ReportMetric(float64(messages*b.N)/times[1].Seconds(), "messages/s")
	for i, side := range []string{"bare", "ours"} {
		b.ReportMetric(float64(cpu[i].Microseconds())/float64(messages*b.N), side+"-µs-cpu/message")
	}
	b.ReportMetric(0, "ns/op")
}

// cpuTime is what this process has used, without those that it started.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// bareLoop is a process at the end of two pipes, and nothing around it.
type bareLoop struct {
	stdin  io.Writer
	stdout *bufio.Reader
}

func startBare(b *testing.B, command []string) *bareLoop {
	b.Helper()
	started := exec.Command(command[0], command[1:]...)
	stdin, err := started.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := started.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := started.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = started.Wait()
	})
	made := &bareLoop{stdin, bufio.NewReaderSize(stdout, 64<<10)}
	if _, err := made.stdout.ReadBytes('\n'); err != nil {
		b.Fatal(err)
	}
	return made
}

func (p *bareLoop) exchange(b *testing.B, r *handler.Request) {
	type about struct {
		ID             string         `json:"id"`
		IdempotencyKey string         `json:"idempotencyKey"`
		Attempt        int64          `json:"attempt"`
		Retries        int64          `json:"retries"`
		Queue          string         `json:"queue"`
		RoutingKey     string         `json:"routingKey"`
		ContentType    string         `json:"contentType"`
		Headers        map[string]any `json:"headers"`
	}
	frame, err := json.Marshal(struct {
		Type     string    `json:"type"`
		ID       string    `json:"id"`
		Deadline time.Time `json:"deadline"`
		Message  about     `json:"message"`
		Body     string    `json:"body"`
	}{"message", "1", time.Now(), about{r.ID, r.IdempotencyKey, r.Attempt, r.Retries, r.Queue, r.RoutingKey, r.ContentType, r.Headers}, string(r.Body)})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := p.stdin.Write(append(frame, '\n')); err != nil {
		b.Fatal(err)
	}
	line, err := p.stdout.ReadBytes('\n')
	if err != nil {
		b.Fatal(err)
	}
	var result struct{ ID, Outcome string }
	if err := json.Unmarshal(line, &result); err != nil || result.Outcome != "ack" {
		b.Fatalf("%q", line)
	}
}
