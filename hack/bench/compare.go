package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// side is one of the two programs of a row. It handles the messages that its stage was filled with, or makes them itself, ticks the meter
// for each, and returns when the meter is full and all is settled.
type side struct {
	play play
	// messages of this side, where it is not as many as the other's.
	messages int
	// unfilled sides publish for themselves.
	unfilled bool
	run      runner
}

type runner func(ctx context.Context, s *stage, m *meter) error

// contest is what a row compares.
type contest struct {
	name       string
	messages   int
	bare, ours side
}

// measured is what one run of one side took.
type measured struct {
	// rate is messages a second.
	rate float64
	// cpu is the seconds of this process, and of those that it started and that have ended, for 100,000 messages.
	cpu float64
	// allocations and bytes are those of this process for each message.
	allocations, bytes float64
}

func rateOf(m *measured) float64        { return m.rate }
func cpuOf(m *measured) float64         { return m.cpu }
func allocationsOf(m *measured) float64 { return m.allocations }
func bytesOf(m *measured) float64       { return m.bytes }

// compare runs both sides in turn, once for nothing and then so many rounds that count: at first code, heap and the broker's caches are
// cold. Who begins changes with each round, so that none has the better half of what else goes on here.
func (b *bench) compare(ctx context.Context, c *contest) (bare, ours []measured, err error) {
	stages := map[*side]*stage{}
	sides := []*side{&c.bare, &c.ours}
	for _, side := range sides {
		if stages[side], err = b.broker.setUp(ctx, side.play); err != nil {
			return nil, nil, err
		}
		defer func() { err = errors.Join(err, stages[side].tearDown(context.WithoutCancel(ctx))) }()
	}
	for round := range b.rounds + 1 {
		for _, side := range sides {
			m, err := b.once(ctx, c, side, stages[side], round)
			switch {
			case err != nil:
				return nil, nil, err
			case round == 0:
			case side == &c.ours:
				ours = append(ours, m)
			default:
				bare = append(bare, m)
			}
		}
		slices.Reverse(sides)
	}
	return bare, ours, nil
}

// alone runs one side once, on a stage of its own.
func (b *bench) alone(ctx context.Context, side *side) (m measured, err error) {
	s, err := b.broker.setUp(ctx, side.play)
	if err != nil {
		return measured{}, err
	}
	defer func() { err = errors.Join(err, s.tearDown(context.WithoutCancel(ctx))) }()
	return b.once(ctx, &contest{bare: *side}, side, s, 0)
}

// once runs one side once.
func (b *bench) once(ctx context.Context, c *contest, side *side, s *stage, round int) (m measured, err error) {
	name := "ours"
	if side == &c.bare {
		name = "bare"
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, round %d: %w", name, round, err)
		}
	}()
	messages := cmp.Or(side.messages, c.messages)
	if !side.unfilled {
		if err := s.fill(ctx, messages); err != nil {
			return measured{}, err
		}
	}
	meter := newMeter(messages)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	stopProfile := func() error { return nil }
	if side == &c.ours && round > 0 {
		stopProfile, err = b.profile(c.name, round)
	}
	used := cpuTime()
	err = errors.Join(err, side.run(ctx, s, meter))
	used = cpuTime() - used
	err = errors.Join(err, stopProfile())
	runtime.ReadMemStats(&after)
	if err != nil {
		return measured{}, err
	}
	each := func(x uint64) float64 { return float64(x) / float64(messages) }
	m = measured{
		rate: meter.rate(), cpu: used.Seconds() / float64(messages) * 100_000,
		allocations: each(after.Mallocs - before.Mallocs), bytes: each(after.TotalAlloc - before.TotalAlloc),
	}
	b.tellf("%s: %.0f/s, %.2f s of CPU for 100,000, %.0f allocations and %.0f bytes for each", name, m.rate, m.cpu, m.allocations, m.bytes)
	return m, s.empty()
}

// profile begins a CPU profile, if some are wanted, and returns what ends it.
func (b *bench) profile(name string, round int) (stop func() error, err error) {
	if b.profiles == "" {
		return func() error { return nil }, nil
	}
	name = strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return '-'
	}, name)
	file, err := os.Create(filepath.Join(b.profiles, fmt.Sprintf("%s-%d.cpu.pprof", name, round)))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("profile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// cpuTime of this process, and of its children that have ended.
func cpuTime() time.Duration {
	var total time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err == nil {
			total += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return total
}

// median of what a function gives for each.
func median[T any](all []T, of func(*T) float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	values := make([]float64, len(all))
	for i := range all {
		values[i] = of(&all[i])
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
