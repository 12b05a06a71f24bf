package runas

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// LookUpAs waits no longer than LookUpTimeout, and passes a later result to releaseLateResult. While
// maxAbandonedLookUpsPerUser look-ups of an account hang, look-ups of this account fail without being started. Look-ups
// of other accounts still start.
func TestHungLookUpsAreAbandoned(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act as another user; .ci/run runs it as root")
	synctest.Test(t, func(t *testing.T) {
		answer, released := make(chan int), make(chan int, maxAbandonedLookUpsPerUser)
		ask := func() (int, error) { return <-answer, nil }
		begun := time.Now()
		for range maxAbandonedLookUpsPerUser {
			go func() {
				if _, err := LookUpAs(processIdentity(), ask, func(n int) { released <- n }); !errors.Is(err, ErrLookUpHung) {
					t.Errorf("LookUp returned %v, want ErrHung", err)
				}
			}()
		}
		time.Sleep(LookUpTimeout)
		synctest.Wait()
		if n := hungLookUps.totalCount; n != maxAbandonedLookUpsPerUser || time.Since(begun) != LookUpTimeout {
			t.Errorf("after %v, %d lookups are abandoned", time.Since(begun), n)
		}
		if _, err := LookUpAs(processIdentity(), ask, func(int) {}); !errors.Is(err, ErrLookUpHung) ||
			time.Since(begun) != LookUpTimeout {
			t.Errorf("one more lookup: %v, after %v", err, time.Since(begun))
		}
		other := &Identity{UID: processIdentity().UID + 1, GID: 1}
		if n, err := LookUpAs(other, func() (int, error) { return 7, nil }, nil); n != 7 || err != nil {
			t.Errorf("another account's: got %d, %v", n, err)
		}
		for i := range maxAbandonedLookUpsPerUser {
			answer <- i
		}
		synctest.Wait()
		if hungLookUps.totalCount != 0 || len(released) != maxAbandonedLookUpsPerUser {
			t.Errorf("%d lookups are still abandoned, %d results were released", hungLookUps.totalCount, len(released))
		}
		wrong := errors.New("wrong")
		if n, err := LookUpAs(processIdentity(), func() (int, error) { return 7, wrong }, nil); n != 7 || err != wrong {
			t.Errorf("LookUp returned %d, %v; want 7 and the error of the function", n, err)
		}
	})
}

// While maxAbandonedLookUpsTotal look-ups hang, counted over all accounts, further look-ups are not started, because
// they could hang too. They fail with a ResourceShortageError.
func TestHungLookUpsAreBounded(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act as another user; .ci/run runs it as root")
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan int)
		var callers sync.WaitGroup
		for i := range maxAbandonedLookUpsTotal {
			callers.Go(func() {
				LookUpAs(&Identity{UID: uint32(i / maxAbandonedLookUpsPerUser), GID: 1},
					func() (int, error) { return <-answer, nil }, nil)
			})
		}
		callers.Wait()
		_, err := LookUpAs(&Identity{UID: maxAbandonedLookUpsTotal, GID: 1}, func() (int, error) { return 7, nil }, nil)
		if !errors.As(err, new(*ResourceShortageError)) || !errors.Is(err, ErrLookUpHung) {
			t.Errorf("LookUp returned %v, want a shortage", err)
		}
		close(answer)
		synctest.Wait()
	})
}
