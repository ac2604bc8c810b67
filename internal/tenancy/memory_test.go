package tenancy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/internal/tenancy"
)

// Servers of hostile namespaces send some megabytes of a list and then nothing, so that their reconciles keep these for half a minute each.
func TestMemory_LeavesRoomForANamespaceBesideSeveralThatKeepWhatTheyGet(t *testing.T) {
	for _, hostile := range []int{1, 2, 3, 10} {
		t.Run(strconv.Itoa(hostile), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { besideHostile(t, hostile) }) })
	}
}

func besideHostile(t *testing.T, hostile int) {
	m := tenancy.NewMemory(96 << 20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	keep := func(namespace string) {
		time.Sleep(rand.N(5 * time.Second))
		for ctx.Err() == nil {
			r := m.Reserve(namespace)
			request, done := context.WithTimeout(ctx, 30*time.Second)
			var err error
			for n := 0; n < 6 && err == nil; n++ {
				err = r.Take(request, tenancy.MemoryStep)
			}
			if err == nil {
				<-request.Done()
			}
			done()
			r.Release()
			time.Sleep(time.Second + rand.N(time.Second))
		}
	}
	for n := range hostile {
		for range 250 {
			go keep(fmt.Sprint("hostile-", n))
		}
	}
	time.Sleep(2 * time.Minute)
	for range 5 {
		began := time.Now()
		for r := m.Reserve("shop"); ; r = m.Reserve("shop") {
			request, done := context.WithTimeout(ctx, 30*time.Second)
			err := r.Take(request, 300<<10)
			done()
			r.Release()
			if err == nil {
				break
			}
			if !errors.Is(err, tenancy.ErrMemory) {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("beside %d hostile namespaces it waited %v", hostile, waited)
		}
		time.Sleep(10 * time.Second)
	}
	cancel()
	time.Sleep(time.Minute)
	synctest.Wait()
}

func TestMemory_GivesANamespaceNoMoreThanItLeaves(t *testing.T) {
	m := tenancy.NewMemory(8 * tenancy.MemoryStep)
	steps := func(namespace string) (taken int, r *tenancy.Reservation) {
		for r = m.Reserve(namespace); r.TakeNow(t.Context(), tenancy.MemoryStep) == nil; {
			taken++
		}
		return taken, r
	}
	first, large := steps("a")
	second, _ := steps("b")
	third, _ := steps("c")
	last, _ := steps("d")
	if first != 4 || second != 2 || third != 1 || last != 1 {
		t.Errorf("they got %d, %d, %d and %d of 8 steps", first, second, third, last)
	}
	large.Release()
	if all, its := m.Used("a"); its != 0 || all != 4*tenancy.MemoryStep {
		t.Errorf("%d are taken, %d of them by one that has given all back", all, its)
	}
}

func TestMemory_GivesRoomToThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := tenancy.NewMemory(2 * tenancy.MemoryStep)
		holds := m.Reserve("a")
		if err := holds.TakeNow(t.Context(), tenancy.MemoryStep); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 2)
		wait := func(ctx context.Context) { ended <- m.Reserve("a").Take(ctx, tenancy.MemoryStep) }
		short, cancel := context.WithCancel(t.Context())
		go wait(short)
		synctest.Wait()
		go wait(t.Context())
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, tenancy.ErrMemory) {
			t.Errorf("the one that gave up: %v", err)
		}
		holds.Release()
		if err := <-ended; err != nil {
			t.Errorf("the one that waited: %v", err)
		}
	})
}

// Namespaces that come in the order of what they have take all memory, give it back at one moment, and take it again: another one waited as long as that took.
func TestMemory_LeavesSomethingBesideNamespacesThatShareAllOfIt(t *testing.T) {
	m := tenancy.NewMemory(96 << 20)
	for n := range 14 {
		namespace := fmt.Sprint("hostile-", n)
		for range 100 {
			_ = m.Reserve(namespace).TakeNow(t.Context(), tenancy.MemoryStep)
		}
		shop := m.Reserve("shop")
		if err := shop.TakeNow(t.Context(), tenancy.MemoryStep); err != nil {
			t.Fatalf("beside %d namespaces another one gets nothing: %v", n+1, err)
		}
		shop.Release()
	}
}

func TestReservation_TakesFreeBytesBack(t *testing.T) {
	m := tenancy.NewMemory(8 * tenancy.MemoryStep)
	r := m.Reserve("a")
	for range 100 {
		if err := errors.Join(r.TakeNow(t.Context(), 60<<10), r.TakeNow(t.Context(), -60<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if all, _ := m.Used("a"); all != 0 {
		t.Errorf("%d bytes are taken of a row that is read", all)
	}
}
