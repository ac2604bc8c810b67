// Package policytest asks RetryPolicies what becomes of failures that a file describes, and compares the answers with what
// the file expects. It needs neither a broker nor a cluster, and gives the same answers each time.
package policytest

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// Case is one failure and what is expected of it.
type Case struct {
	Name string `yaml:"name"`
	// Transport that the message belongs to, where the manifests hold several that have its queue.
	Transport string `yaml:"transport"`
	// Policy that is asked, whatever the Transport says.
	Policy  string  `yaml:"policy"`
	Message Message `yaml:"message"`
	Error   Failure `yaml:"error"`
	// Retries are the handled failures before this one that count against maxRetries.
	Retries int64 `yaml:"retries"`
	// Immediate are the tries at once before this one.
	Immediate int64 `yaml:"immediate"`
	// Attempts are the failures before this one, whatever they count against; left out, Retries and Immediate.
	Attempts *int64 `yaml:"attempts"`
	// Streak is the strategy that decided last, and how often in a row.
	Streak Streak `yaml:"streak"`
	// Age is the time since the first failure.
	Age duration `yaml:"age"`
	// LastDelay is the delay before this attempt, which Decorrelated jitter builds on.
	LastDelay duration `yaml:"lastDelay"`
	// Now is the time of the failure; left out, noon of a Monday.
	Now    moment `yaml:"now"`
	Expect Expect `yaml:"expect"`

	// File and Line of the case.
	File string `yaml:"-"`
	Line int    `yaml:"-"`

	// strict is true where the queue of the message has Strict order.
	strict bool `yaml:"-"`
}

// Message is what expressions see of a message.
type Message struct {
	ID            string         `yaml:"id"`
	Type          string         `yaml:"type"`
	Exchange      string         `yaml:"exchange"`
	RoutingKey    string         `yaml:"routingKey"`
	Queue         string         `yaml:"queue"`
	ContentType   string         `yaml:"contentType"`
	CorrelationID string         `yaml:"correlationId"`
	ReplyTo       string         `yaml:"replyTo"`
	AppID         string         `yaml:"appId"`
	UserID        string         `yaml:"userId"`
	Expiration    duration       `yaml:"expiration"`
	Priority      uint8          `yaml:"priority"`
	Timestamp     moment         `yaml:"timestamp"`
	Headers       map[string]any `yaml:"headers"`
	// Body is written as JSON.
	Body document `yaml:"body"`
	// RawBody is taken as it is.
	RawBody *string `yaml:"rawBody"`
}

// Failure is how the attempt failed.
type Failure struct {
	// Source is Handler where it is left out.
	Source     string    `yaml:"source"`
	Status     int       `yaml:"status"`
	Class      string    `yaml:"class"`
	Message    string    `yaml:"message"`
	RetryAfter *duration `yaml:"retryAfter"`
	// Advice of the handler: Fail, Drop or Retry, in any case. Left out, it gives none.
	Advice string `yaml:"advice"`
}

// Streak is a number of decisions of one strategy in a row.
type Streak struct {
	Strategy string `yaml:"strategy"`
	Count    int64  `yaml:"count"`
}

// Expect is the verdict that is expected. What is left out is not compared.
type Expect struct {
	Action v1alpha1.Action `yaml:"action"`
	Delay  *Delay          `yaml:"delay"`
	// Strategy that decides; "" expects that none does.
	Strategy *string       `yaml:"strategy"`
	Reason   *retry.Reason `yaml:"reason"`
	// Policy that is chosen by message.
	Policy *string `yaml:"policy"`
}

// Delay is an exact delay before jitter, or bounds of the delay that jitter makes of it.
type Delay struct {
	Exact *time.Duration
	// Min and Max hold where Exact is nil.
	Min, Max time.Duration
}

func (d *Delay) String() string {
	switch {
	case d.Exact != nil:
		return retry.Readable(*d.Exact)
	case d.Max == math.MaxInt64:
		return "at least " + retry.Readable(d.Min)
	default:
		return "within " + spread(d.Min, d.Max)
	}
}

// noon of a Monday is when a failure happens that says nothing else, so that a case gives the same in the night.
func noon() time.Time { return time.Date(2026, time.January, 5, 12, 0, 0, 0, time.UTC) }

func (c *Case) now() time.Time {
	if !c.Now.IsZero() {
		return c.Now.Time
	}
	return noon()
}

// attempts are the failures before this one.
func (c *Case) attempts() int64 {
	if c.Attempts != nil {
		return *c.Attempts
	}
	return c.Retries + c.Immediate
}

func (c *Case) history() retry.History {
	h := retry.History{
		Attempts: c.attempts(), Retries: c.Retries, Immediate: c.Immediate,
		Strategy: c.Streak.Strategy, Streak: c.Streak.Count, LastDelay: c.LastDelay.Duration,
	}
	if h.Attempts > 0 || c.Age.Duration > 0 {
		h.FirstFailure = c.now().Add(-c.Age.Duration)
	}
	return h
}

func (c *Case) failure() retry.Failure {
	f := retry.Failure{
		Source: retry.SourceHandler, Status: c.Error.Status, Class: c.Error.Class, Message: c.Error.Message,
	}
	if c.Error.Source != "" {
		f.Source = retry.Source(c.Error.Source)
	}
	if c.Error.RetryAfter != nil {
		f.RetryAfter = &c.Error.RetryAfter.Duration
	}
	f.Advice, _ = c.Error.advice()
	if c.strict {
		return f.InOrder()
	}
	return f
}

// advice of the handler; false where it is none.
func (f *Failure) advice() (retry.Advice, bool) {
	for _, advice := range advices() {
		if strings.EqualFold(f.Advice, string(advice)) {
			return advice, true
		}
	}
	return "", f.Advice == ""
}

func advices() []retry.Advice {
	return []retry.Advice{retry.AdviseFail, retry.AdviseDrop, retry.AdviseRetry, retry.AdviseRelease}
}

// message is what the worker would make of it.
func (c *Case) message() retry.Message {
	m := retry.Message{
		ID: c.Message.ID, Type: c.Message.Type, Exchange: c.Message.Exchange, RoutingKey: c.Message.RoutingKey, Queue: c.Message.Queue,
		ContentType: c.Message.ContentType, Headers: c.Message.Headers, Priority: int(c.Message.Priority), Timestamp: c.Message.Timestamp.Time,
		CorrelationID: c.Message.CorrelationID, ReplyTo: c.Message.ReplyTo, AppID: c.Message.AppID, UserID: c.Message.UserID,
		Expiration: c.Message.Expiration.Duration, Body: c.Message.Body,
	}
	if m.Type == "" {
		m.Type, _ = m.Headers["type"].(string)
	}
	if c.Message.RawBody != nil {
		m.Body = []byte(*c.Message.RawBody)
	}
	return m
}

// wrong gives each mistake the case's place; nil where there is none.
func (c *Case) wrong(mistakes ...error) error {
	placed := make([]error, len(mistakes))
	for i, mistake := range mistakes {
		placed[i] = fmt.Errorf("%s:%d: case %q: %w", c.File, c.Line, c.Name, mistake)
	}
	return errors.Join(placed...)
}

// spread shows a range of delays.
func spread(shortest, longest time.Duration) string {
	if shortest == longest {
		return retry.Readable(shortest)
	}
	return retry.Readable(shortest) + " to " + retry.Readable(longest)
}
