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
func (t *sparedTrees) add(uid uint32, s *sparedTree) bool {
	t.mu.Lock()
	full := len(t.byUID[uid]) >= maxSparedTreesPerUser
	t.mu.Unlock()
	if full {
		t.removeEnded()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byUID[uid]) >= maxSparedTreesPerUser {
		return false
	}
	t.byUID[uid] = append(t.byUID[uid], s)
	return true
}

// removeEnded drops the records of trees that have ended. It checks the processes without holding the
// lock.
func (t *sparedTrees) removeEnded() {
	t.mu.Lock()
	copied := map[uint32][]*sparedTree{}
	for uid, list := range t.byUID {
		copied[uid] = slices.Clone(list)
	}
	t.mu.Unlock()
	takeScan := sync.OnceValue(processScanner.freshScan)
	for uid, list := range copied {
		alive := livingTrees(uid, list, takeScan)
		t.mu.Lock()
		t.byUID[uid] = slices.DeleteFunc(t.byUID[uid], func(s *sparedTree) bool {
			return !alive[s] && slices.Contains(list, s)
		})
		if len(t.byUID[uid]) == 0 {
			delete(t.byUID, uid)
		}
		t.mu.Unlock()
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
