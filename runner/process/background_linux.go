package process

import (
	"bytes"
	"os"
	"slices"
	"sync"

	"github.com/queuectl/queuectl/runner/procfs"
)

// maxSparedTreesPerUser is how many trees of one account may live on after their commands.
const maxSparedTreesPerUser = 64

// sparedTreesByUser records the trees that live on after their commands.
var sparedTreesByUser = sparedTrees{byUID: map[uint32][]*sparedTree{}}

type sparedTrees struct {
	mu    sync.Mutex
	byUID map[uint32][]*sparedTree // recorded trees by account; guarded by mu
}

// sparedTree describes the processes that a command left behind and that may live on.
type sparedTree struct {
	cgroupPath string // directory of the control group; "" without a control group
	cookie     string
	procs      []procfs.Process // some of the processes; empty if there is a control group
}

// maxRecorded limits how many processes of a tree without a control group are recorded.
const maxRecorded = 16

// add records a tree. It returns false if the account already has maxSparedTreesPerUser living trees.
func (b *sparedTrees) add(uid uint32, s *sparedTree) bool {
	b.mu.Lock()
	full := len(b.byUID[uid]) >= maxSparedTreesPerUser
	b.mu.Unlock()
	if full {
		b.removeEnded()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.byUID[uid]) >= maxSparedTreesPerUser {
		return false
	}
	b.byUID[uid] = append(b.byUID[uid], s)
	return true
}

// removeEnded drops the records of trees that have ended. It checks the processes without holding the
// lock.
func (b *sparedTrees) removeEnded() {
	b.mu.Lock()
	copied := map[uint32][]*sparedTree{}
	for uid, list := range b.byUID {
		copied[uid] = slices.Clone(list)
	}
	b.mu.Unlock()
	takeScan := sync.OnceValue(processScanner.freshScan)
	for uid, list := range copied {
		alive := livingTrees(uid, list, takeScan)
		b.mu.Lock()
		b.byUID[uid] = slices.DeleteFunc(b.byUID[uid], func(s *sparedTree) bool {
			return !alive[s] && slices.Contains(list, s)
		})
		if len(b.byUID[uid]) == 0 {
			delete(b.byUID, uid)
		}
		b.mu.Unlock()
	}
}

// livingTrees returns which of an account's trees have a living process. The function takeScan returns
// a scan that began after the call of livingTrees.
func livingTrees(uid uint32, list []*sparedTree, takeScan func() *scan) map[*sparedTree]bool {
	alive, byCookie := map[*sparedTree]bool{}, map[string]*sparedTree{}
	for _, s := range list {
		switch {
		case s.cgroupPath != "":
			raw, err := os.ReadFile(s.cgroupPath + "/cgroup.events")
			alive[s] = err == nil && !bytes.Contains(raw, []byte("populated 0"))
		case slices.ContainsFunc(s.procs, procfs.Process.StillAlive):
			alive[s] = true
		default:
			byCookie[s.cookie] = s
		}
	}
	if len(byCookie) == 0 {
		return alive
	}
	l := takeScan()
	for _, p := range l.procs {
		if p.Alive() && l.isOwnedBy(uid, p.PID) {
			if s := byCookie[l.cookie(p.PID)]; s != nil {
				alive[s] = true
			}
		}
	}
	return alive
}
