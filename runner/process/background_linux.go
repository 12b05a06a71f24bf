package process

import (
	"bytes"
	"os"
	"slices"
	"sync"

	"github.com/queuectl/queuectl/runner/procfs"
)

// maxBackgroundTreesPerUser is how many process trees of one account may live on after their commands have ended.
const maxBackgroundTreesPerUser = 64

// allBackgroundTrees records the process trees that live on after their commands have ended.
var allBackgroundTrees backgroundTrees

// backgroundTrees is a list of process trees that are allowed to live on after their commands. Workers can use it
// concurrently.
type backgroundTrees struct {
	mu    sync.Mutex
	trees []*backgroundTree // guarded by mu
}

// backgroundTree describes the processes that one command left behind and that are allowed to live on.
type backgroundTree struct {
	uid        uint32 // account of the command
	cgroupPath string // directory of the control group; "" without a control group
	cookie     string
	procs      []procfs.Process // at most maxRecordedProcesses of its processes; empty if there is a control group
}

// maxRecordedProcesses limits how many processes of a background tree without a control group are recorded.
const maxRecordedProcesses = 16

// addTree records a background tree. It returns false if the account already has maxBackgroundTreesPerUser trees with
// living processes.
func (t *backgroundTrees) addTree(tree *backgroundTree) bool {
	if t.addTreeIfRoom(tree) {
		return true
	}
	t.removeEndedTrees()
	return t.addTreeIfRoom(tree)
}

// addTreeIfRoom records a background tree if fewer than maxBackgroundTreesPerUser trees of its account are recorded. It
// reports whether it has recorded the tree.
func (t *backgroundTrees) addTreeIfRoom(tree *backgroundTree) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	recorded := 0
	for _, other := range t.trees {
		if other.uid == tree.uid {
			recorded++
		}
	}
	if recorded >= maxBackgroundTreesPerUser {
		return false
	}
	t.trees = append(t.trees, tree)
	return true
}

// removeEndedTrees removes the records of trees that have ended. It does not hold mu while it checks the
// processes.
func (t *backgroundTrees) removeEndedTrees() {
	t.mu.Lock()
	list := slices.Clone(t.trees)
	t.mu.Unlock()
	ended := endedTrees(list)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trees = slices.DeleteFunc(t.trees, func(s *backgroundTree) bool { return ended[s] })
}

// endedTrees returns the trees that have no living process.
func endedTrees(trees []*backgroundTree) map[*backgroundTree]bool {
	ended, byCookie, uids := map[*backgroundTree]bool{}, map[string]*backgroundTree{}, map[uint32]bool{}
	for _, s := range trees {
		switch {
		case s.cgroupPath != "":
			raw, err := os.ReadFile(s.cgroupPath + "/cgroup.events")
			ended[s] = err != nil || bytes.Contains(raw, []byte("populated 0"))
		case !slices.ContainsFunc(s.procs, procfs.Process.IsStillAlive):
			ended[s], byCookie[s.cookie], uids[s.uid] = true, s, true
		}
	}
	if len(byCookie) == 0 {
		return ended
	}
	l := processScanner.freshSnapshot()
	for _, p := range l.procs {
		uid, known := l.realUIDByPID[p.PID]
		if !known || !uids[uid] || !p.WasAlive() {
			continue
		}
		if s := byCookie[l.cookie(p.PID)]; s != nil && s.uid == uid {
			ended[s] = false
		}
	}
	return ended
}
