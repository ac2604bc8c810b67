package retry

import (
	"strings"
	"testing"
	"testing/synctest"
)

// Each key, list of rules and policy of one message decoded its body anew, a third of a second each time where it was large.
func TestDecoded_KeepsABodyUntilLetGo(t *testing.T) {
	tenant, err := CompileKey("key", "message.body.tenant")
	if err != nil {
		t.Fatal(err)
	}
	kind, err := CompileKey("key", "message.body.a.exists(x, x == 1) ? 'one' : 'none'")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := CompileRules("rules", []string{"message.body.tenant == 'other'", "message.body.a.exists(x, x == 1)"})
	if err != nil {
		t.Fatal(err)
	}
	policy := compile(t, `strategies: [{name: s, when: "message.body.tenant == 'acme'"}]`)
	for name, c := range map[string]struct {
		body   string
		broken bool
		once   int // how often it is decoded until it is let go of once, and
		twice  int // twice
	}{
		"small":       {`{"tenant":"acme","a":[1]}`, false, 1, 2},
		"large":       {`{"tenant":"acme","a":[1]` + strings.Repeat(" ", 2*quickBody) + `}`, false, 1, 2},
		"no JSON":     {strings.Repeat("?", 2*quickBody), true, 1, 1},
		"for no room": {`{"tenant":"acme","a":[1]` + strings.Repeat(" ", 5*quickBody) + `}`, true, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			decoded := 0
			decode := func(body []byte) (any, error) {
				decoded++
				return decodeJSON(body)
			}
			tenant.match.decode, kind.match.decode, rules.decode, policy.decode = decode, decode, decode, decode
			var kept Decoded
			m := Message{Body: []byte(c.body), Bodies: NewBodies(4*quickBody, 1), Decoded: &kept, Turns: NewTurns(1)}
			room := m.Bodies.large.free + m.Bodies.small.free
			for _, want := range []int{c.once, c.twice} {
				for _, key := range []*Key{tenant, kind} {
					if text, err := key.Of(m); (text == "") != c.broken || (err != nil) != c.broken {
						t.Errorf("the key is %q, %v", text, err)
					}
				}
				if index, problems := rules.First(m); (index == 1) == c.broken || (len(problems) == 0) == c.broken {
					t.Errorf("rule %d matches, problems %v", index, problems)
				}
				if v := policy.Decide(Failure{}, m, History{}, start(), edge(false)); (v.Strategy == "s") == c.broken {
					t.Errorf("%q decided, problems %v", v.Strategy, v.Problems)
				}
				if decoded != want {
					t.Errorf("it was decoded %d times, want %d", decoded, want)
				}
				if !c.broken && m.Bodies.large.free+m.Bodies.small.free == room {
					t.Error("it takes no room while it is kept")
				}
				kept.LetGo()
				kept.LetGo() // again is no mistake
				if free := m.Bodies.large.free + m.Bodies.small.free; free != room {
					t.Errorf("%d are free of %d when it is let go of", free, room)
				}
			}
		})
	}
}

// A message that keeps a body waits for a turn, and one that has the turn for the room of that body.
func TestDecoded_KeptBodiesAndTurnsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, err := CompileKey("key", `message.body.exists(x, x == 1) ? 'one' : 'none'`)
		if err != nil {
			t.Fatal(err)
		}
		body := []byte(`[0` + strings.Repeat(",0", quickBody) + `,1]`)
		bodies, turns := NewBodies(int64(len(body)), 2), NewTurns(1)
		done := make(chan struct{})
		for range 10 {
			go func() {
				var kept Decoded
				m := Message{Body: body, Bodies: bodies, Decoded: &kept, Turns: turns}
				for range 3 {
					if text, err := key.Of(m); text != "one" || err != nil {
						t.Errorf("the key is %q, %v", text, err)
					}
				}
				kept.LetGo()
				done <- struct{}{}
			}()
		}
		for range 10 {
			<-done
		}
	})
}
