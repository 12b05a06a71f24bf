package process

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What a command names is waited for for a second; what is found later is given back, and
// so many look-ups that do not return are the most.
func TestLookUpsThatHangAreGivenUp(t *testing.T) {
	needsRoot(t)
	synctest.Test(t, func(t *testing.T) {
		answer, back := make(chan int), make(chan int, maxLate)
		ask := func() (int, error) { return <-answer, nil }
		begun := time.Now()
		for range maxLate {
			go func() {
				if _, err := lookUp(ownIdentity(), ask, func(n int) { back <- n }); !errors.Is(err, errHung) {
					t.Errorf("got %v", err)
				}
			}()
		}
		time.Sleep(StartWithin)
		synctest.Wait()
		if n := late.Load(); n != maxLate || time.Since(begun) != StartWithin {
			t.Errorf("after %v %d are given up", time.Since(begun), n)
		}
		if _, err := lookUp(ownIdentity(), ask, func(int) {}); !errors.Is(err, errHung) || time.Since(begun) != StartWithin {
			t.Errorf("one more: %v, after %v", err, time.Since(begun))
		}
		for i := range maxLate {
			answer <- i
		}
		synctest.Wait()
		if late.Load() != 0 || len(back) != maxLate {
			t.Errorf("%d are late, %d were given back", late.Load(), len(back))
		}
		wrong := errors.New("wrong")
		if n, err := lookUp(ownIdentity(), func() (int, error) { return 7, wrong }, nil); n != 7 || err != wrong {
			t.Errorf("got %d, %v", n, err)
		}
	})
}
