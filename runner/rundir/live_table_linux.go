package rundir

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/wire"
)

// LiveRunningTable reads a living runner's table of running attempts from another process. It always shows the
// current contents.
type LiveRunningTable struct{ slots tableSlots }

// MapLiveRunningTable maps the table of the runner whose directory is runnerDir into memory, until this process ends.
func MapLiveRunningTable(runnerDir string) (LiveRunningTable, error) {
	f, err := os.Open(filepath.Join(runnerDir, RunningTableFileName))
	if err != nil {
		return LiveRunningTable{}, err
	}
	defer f.Close() // the mapping keeps the file open
	mem, err := unix.Mmap(int(f.Fd()), 0, (MaxTableSlots+1)*tableSlotBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return LiveRunningTable{},
			fmt.Errorf("cannot map the runner's list of running jobs, %s; check the free memory and the "+
				"disk: %w", f.Name(), err)
	}
	return LiveRunningTable{mem}, nil
}

// RunnerPID returns the pid of the runner.
func (t LiveRunningTable) RunnerPID() int { return int(t.slots.field(0, 0)) }

// LeasesExpire reports whether the leases of the runner's service expire. When a lease has expired, another
// node may start the job.
func (t LiveRunningTable) LeasesExpire() bool { return t.slots.field(0, leasesExpireField)&1 != 0 }

// AttemptInSlot returns the lease of the attempt in a slot, from 1 to MaxTableSlots. If the slot is free, the lease has
// Seq 0. Otherwise, forked reports whether the attempt has a process.
func (t LiveRunningTable) AttemptInSlot(slot int) (lease wire.Lease, hasProcess bool) {
	return wire.Lease{Seq: t.slots.field(slot, 0), Fence: t.slots.field(slot, 1)}, t.slots.field(slot, 2) != 0
}
