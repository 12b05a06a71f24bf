package process

import (
	"bytes"
	"os"
	"slices"
	"sync"
)

// maxBackground is how many trees of one account may live on after their commands.
const maxBackground = 64

// background records the trees that live on after their commands.
var background = backgrounds{of: map[uint32][]*spared{}}

type backgrounds struct {
	mu sync.Mutex
	of map[uint32][]*spared // by account; guarded by mu
}

// spared describes the processes that a command left behind and that may live on.
type spared struct {
	group  string // directory of the control group; "" if there is none
	cookie string
	procs  []proc // some of the processes; only if there is no control group
}

// maxNoted is how many processes are recorded of a tree without a control group.
const maxNoted = 16

// add records a tree. It returns false if the account has too many already.
func (b *backgrounds) add(uid uint32, s *spared) bool {
	if b.put(uid, s) {
		return true
	}
	b.forget()
	return b.put(uid, s)
}

func (b *backgrounds) put(uid uint32, s *spared) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.of[uid]) >= maxBackground {
		return false
	}
	b.of[uid] = append(b.of[uid], s)
	return true
}

// forget drops the records of trees that have ended. It checks the processes without holding the lock.
func (b *backgrounds) forget() {
	b.mu.Lock()
	all := map[uint32][]*spared{}
	for uid, list := range b.of {
		all[uid] = slices.Clone(list)
	}
	b.mu.Unlock()
	seen := sync.OnceValue(processes.now)
	for uid, list := range all {
		lives := living(uid, list, seen)
		b.mu.Lock()
		b.of[uid] = slices.DeleteFunc(b.of[uid], func(s *spared) bool { return !lives[s] && slices.Contains(list, s) })
		if len(b.of[uid]) == 0 {
			delete(b.of, uid)
		}
		b.mu.Unlock()
	}
}

// living returns which of an account's trees have a living process. The function seen returns a scan
// that began after the call of living.
func living(uid uint32, list []*spared, seen func() *look) map[*spared]bool {
	lives, byCookie := map[*spared]bool{}, map[string]*spared{}
	for _, s := range list {
		switch {
		case s.group != "":
			raw, err := os.ReadFile(s.group + "/cgroup.events")
			lives[s] = err == nil && !bytes.Contains(raw, []byte("populated 0"))
		case slices.ContainsFunc(s.procs, proc.lives):
			lives[s] = true
		default:
			byCookie[s.cookie] = s
		}
	}
	if len(byCookie) == 0 {
		return lives
	}
	l := seen()
	for _, p := range l.procs {
		if p.alive() && l.owns(uid, p.pid) {
			if s := byCookie[l.cookie(p.pid)]; s != nil {
				lives[s] = true
			}
		}
	}
	return lives
}
