package process

import (
	"bytes"
	"os"
	"slices"
	"sync"

	"github.com/queuectl/queuectl/runner/procfs"
)

// maxSparedTreesPerUser is how many process trees of one account may live on after their commands have
// ended.
const maxSparedTreesPerUser = 64

// allSparedTrees records the process trees that live on after their commands have ended.
var allSparedTrees sparedTrees

// sparedTrees is a list of process trees that are allowed to live on. Workers can use it concurrently.
type sparedTrees struct {
	mu    sync.Mutex
	trees []*sparedTree // guarded by mu
}

// sparedTree describes a spared tree: processes that a command left behind and that are allowed to live on.
type sparedTree struct {
	uid        uint32 // account of the command
	cgroupPath string // directory of the control group; "" without a control group
	cookie     string
	procs      []procfs.Process // at most maxRecordedProcesses of the processes; empty if there is a control group
}

// maxRecordedProcesses limits how many processes of a spared tree without a control group are recorded.
const maxRecordedProcesses = 16

// add records a spared tree. It returns false if the account already has maxSparedTreesPerUser living
// trees.
func (t *sparedTrees) add(s *sparedTree) bool {
	if t.addIfRoom(s) {
		return true
	}
	t.removeEnded()
	return t.addIfRoom(s)
}

// addIfRoom records a spared tree if fewer than maxSparedTreesPerUser trees of its account are recorded,
// and reports whether it did.
func (t *sparedTrees) addIfRoom(s *sparedTree) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	recorded := 0
	for _, other := range t.trees {
		if other.uid == s.uid {
			recorded++
		}
	}
	if recorded >= maxSparedTreesPerUser {
		return false
	}
	t.trees = append(t.trees, s)
	return true
}

// removeEnded removes the records of trees that have ended. It does not hold mu while it checks the
// processes.
func (t *sparedTrees) removeEnded() {
	t.mu.Lock()
	list := slices.Clone(t.trees)
	t.mu.Unlock()
	ended := endedTrees(list)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trees = slices.DeleteFunc(t.trees, func(s *sparedTree) bool { return ended[s] })
}

// endedTrees returns the trees that have no living process.
func endedTrees(trees []*sparedTree) map[*sparedTree]bool {
	ended, byCookie, uids := map[*sparedTree]bool{}, map[string]*sparedTree{}, map[uint32]bool{}
	for _, s := range trees {
		switch {
		case s.cgroupPath != "":
			raw, err := os.ReadFile(s.cgroupPath + "/cgroup.events")
			ended[s] = err != nil || bytes.Contains(raw, []byte("populated 0"))
		case !slices.ContainsFunc(s.procs, procfs.Process.StillAlive):
			ended[s], byCookie[s.cookie], uids[s.uid] = true, s, true
		}
	}
	if len(byCookie) == 0 {
		return ended
	}
	l := processScanner.freshScan()
	for _, p := range l.procs {
		uid, known := l.realUIDs[p.PID]
		if !known || !uids[uid] || !p.WasAlive() {
			continue
		}
		if s := byCookie[l.cookie(p.PID)]; s != nil && s.uid == uid {
			ended[s] = false
		}
	}
	return ended
}
