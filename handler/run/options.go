package run

import (
	"cmp"
	"flag"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// Options of a worker. What is left out is as its flag has it when it is not given; Flags says what that is.
type Options struct {
	// Config is the file with the worker's configuration, which the operator and `redrive run` make of a Transport and its
	// policies. It is read again when it changes.
	Config string
	// Credentials is the folder with the keys of the broker's Secret, one file each; read again when it changes.
	Credentials string
	// HandlerFiles is the folder of what an http handler takes from Secrets: headers/ with a file for each header, and ca.crt.
	HandlerFiles string
	// Listen is the address of /healthz, /readyz, /status and /metrics.
	Listen string
	// LogLevel is where Log begins, if that is left out.
	LogLevel slog.Level
	// Log is where the worker logs; left out, JSON on standard error.
	Log *slog.Logger
	// Metrics is where the worker registers its metrics, and what /metrics serves, so a program's own may be there. Only one
	// worker can have it. Left out, it is a registry of the worker's own with the metrics of Go and of the process.
	Metrics *prometheus.Registry

	// Quarantine makes this the worker that handles the messages of the quarantine queues, one at a time, in a child process which
	// they may bring down. Journal is the folder that remembers over a crash which message was handled.
	Quarantine bool
	Journal    string
	// UntilEOF stops the worker also when standard input ends, as it does when the process is gone that started it, and when
	// SIGINT or SIGTERM comes. Standard input is used up for that.
	UntilEOF bool
	// Install copies the running program to the file "worker" in this folder, which it makes if it is not there; no worker runs.
	// An init container does so, for the team's image to run the worker.
	Install string
}

// The values of flags that are not given.
const (
	defaultConfig       = "/etc/redrive/config/config.json"
	defaultCredentials  = "/etc/redrive/broker" //nolint:gosec // a folder, no password
	defaultHandlerFiles = "/etc/redrive/handler"
	defaultListen       = ":9095"
	defaultJournal      = "/var/lib/redrive/journal"
)

// Flags adds the worker's flags to a set, and returns the Options that they fill in when it is parsed.
func Flags(flags *flag.FlagSet) *Options {
	var o Options
	flags.StringVar(&o.Config, "config", defaultConfig, "file with the worker's configuration; it is read again when it changes")
	flags.StringVar(&o.Credentials, "credentials", defaultCredentials,
		"folder with the keys of the broker's Secret, one file each; read again when it changes")
	flags.StringVar(&o.HandlerFiles, "handler-files", defaultHandlerFiles,
		"folder with what an http handler takes from Secrets: headers/ with a file for each, and ca.crt; read again when it changes")
	flags.StringVar(&o.Listen, "listen", defaultListen, "address of /healthz, /readyz, /status and /metrics")
	flags.TextVar(&o.LogLevel, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR")
	flags.BoolVar(&o.Quarantine, "quarantine", false,
		"handle the messages of the quarantine queues instead, one at a time, in a process that may be brought down")
	flags.StringVar(&o.Journal, "journal", defaultJournal,
		"folder that remembers over a crash which message was handled; of the quarantine worker")
	flags.BoolVar(&o.UntilEOF, "stop-on-stdin-close", false, "stop also when standard input ends, as it does with the process that started this one")
	flags.StringVar(&o.Install, "install", "", "copy this program to the file worker in a folder, and end")
	return &o
}

// complete fills in what was left out.
func (o Options) complete() Options {
	o.Config = cmp.Or(o.Config, defaultConfig)
	o.Credentials = cmp.Or(o.Credentials, defaultCredentials)
	o.HandlerFiles = cmp.Or(o.HandlerFiles, defaultHandlerFiles)
	o.Listen = cmp.Or(o.Listen, defaultListen)
	o.Journal = cmp.Or(o.Journal, defaultJournal)
	if o.Log == nil {
		o.Log = slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.LogLevel}))
	}
	return o
}
