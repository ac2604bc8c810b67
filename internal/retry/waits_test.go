package retry

import (
	"strings"
	"testing"
	"time"
)

func TestNumber_OfTooManyDigitsIsOutOfRange(t *testing.T) {
	m, err := CompileMatch("when", "message.body.items.exists(i, i > message.body.limit)")
	if err != nil {
		t.Fatal(err)
	}
	body := `{"limit":1.` + strings.Repeat("1", 100_000) + `,"items":[0,0,0]}`
	if _, err := m.Matches(Message{Body: []byte(body)}); err == nil || !strings.Contains(err.Error(), "number out of range") {
		t.Errorf("the error is %v", err)
	}
	if matches, err := m.Matches(Message{Body: []byte(`{"limit":1.` + strings.Repeat("1", 1000) + `,"items":[0,2]}`)}); err != nil || !matches {
		t.Errorf("a number of a thousand digits: %v, %v", matches, err)
	}
}

// A body waits for the memory of others before it is decoded: that is not work of its own expressions.
func TestBudget_WaitingForMemoryTakesNoneOfItsTime(t *testing.T) {
	m, err := CompileMatch("when", "message.body.tags.exists(t, t == 'x')")
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"tags":["a","x"]}`)
	bodies := NewBodies(int64(len(body)), 2)
	if err := bodies.take("", len(body)); err != nil {
		t.Fatal(err)
	}
	const wait = 200 * time.Millisecond
	time.AfterFunc(wait, func() { bodies.give("", len(body)) })
	budget := Budget{took: decisionTime - wait/2} // less is left than it waits
	if matches, err := m.Matches(Message{Body: body, Bodies: bodies, Budget: &budget}); err != nil || !matches {
		t.Errorf("%v, %v", matches, err)
	}
	if budget.took > decisionTime {
		t.Errorf("the decision took %s", budget.took)
	}
}

func TestRelease_LowersTheLastDelayToItsOwn(t *testing.T) {
	p := compile(t, "maxAge: 24h")
	wait := 8 * time.Second
	history := History{Attempts: 1, Retries: 1, LastDelay: time.Hour, FirstFailure: start().Add(-2 * time.Hour)}
	v := p.Decide(Failure{Advice: AdviseRelease, RetryAfter: &wait}, Message{}, history, start(), edge(false))
	if v.Reason != ReasonRelease || v.History.LastDelay != wait || v.History.Attempts != 1 {
		t.Errorf("%+v", v)
	}
}
