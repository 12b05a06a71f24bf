package runas

import (
	"math"
	"os"
	"runtime"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
)

// After a failed switch to another account, the thread has the rights of this process.
func TestFailedAccountSwitchRestoresRights(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act as another user; .ci/run runs it as root")
	runtime.LockOSThread() // makes all calls use one thread
	defer runtime.UnlockOSThread()
	own := t.TempDir() + "/own"
	for i, id := range []*Identity{
		{UID: math.MaxUint32, GID: 1, Groups: []uint32{1}},
		{UID: 1, GID: 1, Groups: []uint32{math.MaxUint32}},
		{UID: 1, GID: 1, Groups: []uint32{1}},
	} {
		ran := false
		err := callWithIdentity(id, func() error {
			ran = true
			_, err := os.ReadFile("/etc/shadow")
			if err == nil {
				t.Error("root's file is read")
			}
			return nil
		})
		if good := i == 2; ran != good || (err == nil) != good {
			t.Errorf("identity %+v: the function ran: %v, error %v", id, ran, err)
		}
		if err := os.WriteFile(own, nil, 0o600); err != nil {
			t.Errorf("afterwards, as itself: %v", err)
		}
	}
}
