package rundir

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/wire"
)

// LiveTable reads a living runner's table of running attempts from another process. It always shows the
// current contents.
type LiveTable struct{ slots tableSlots }

// MapLiveTable maps the table of the runner in dir into memory, until this process ends.
func MapLiveTable(dir string) (LiveTable, error) {
	f, err := os.Open(filepath.Join(dir, TableFileName))
	if err != nil {
		return LiveTable{}, err
	}
	defer f.Close() // the mapping keeps the file open
	mem, err := unix.Mmap(int(f.Fd()), 0, (MaxSlots+1)*slotBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return LiveTable{}, fmt.Errorf("cannot map the runner's list of running jobs, %s; check the free memory and the "+
			"disk: %w", f.Name(), err)
	}
	return LiveTable{mem}, nil
}

// PID returns the pid of the runner.
func (t LiveTable) PID() int { return int(t.slots.field(0, 0)) }

// LeasesExpire reports whether the leases of the runner's service expire. When a lease has expired, another
// node may start the job.
func (t LiveTable) LeasesExpire() bool { return t.slots.field(0, leasesExpireField)&1 != 0 }

// Attempt returns the lease of the attempt in a slot, from 1 to MaxSlots. The lease has Seq 0 if the slot is
// free. Otherwise, forked reports whether the attempt has a process.
func (t LiveTable) Attempt(slot int) (l wire.Lease, forked bool) {
	return wire.Lease{Seq: t.slots.field(slot, 0), Fence: t.slots.field(slot, 1)}, t.slots.field(slot, 2) != 0
}
