package testbroker

import (
	"context"
	"net"
	"testing"
)

func TestStart_TakesOtherPortsWhereAnotherProgramHasOne(t *testing.T) {
	if systemOfEnvironment() == "" && dockerAnswers(t.Context()) {
		t.Log("a container has ports of its own, and gets only those for AMQP and the management API from us")
	}
	tests := map[string]func(*ports) int{
		"AMQP":         func(p *ports) int { return p.amqp },
		"management":   func(p *ports) int { return p.management },
		"distribution": func(p *ports) int { return p.distribution },
		"epmd":         func(p *ports) int { return p.epmd },
	}
	for name, of := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			taken := 0
			reserve := func() (*ports, error) {
				reserved, err := reservePorts()
				if err != nil || taken > 0 {
					return reserved, err
				}
				taken = of(reserved)
				other, err := net.Listen("tcp", loopback(taken))
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { _ = other.Close() })
				return reserved, nil
			}
			b, err := start(t.Context(), t.Output(), settings{}, reserve)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Stop(context.Background()) })
			if taken == 0 || of(b.settings.ports) == taken {
				t.Errorf("it runs on port %d, which another program has", taken)
			}
		})
	}
}

func TestLockPorts_GivesNoPortsAwayTwice(t *testing.T) {
	first, err := reservePorts()
	if err != nil {
		t.Fatal(err)
	}
	folder, of := t.TempDir(), first.amqp
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	lock, err := lockPorts(folder, of)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockPorts(folder, of); err == nil {
		t.Error("ports are given away twice")
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	lock, err = lockPorts(folder, of)
	if err != nil {
		t.Fatalf("ports that were given back are not given away: %v", err)
	}
	_ = lock.Close()
}
