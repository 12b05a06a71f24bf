package process

import (
	"bytes"
	"os"
	"slices"
	"sync"
)

// maxBackground is how many trees of one account may live on after their commands.
const maxBackground = 64

// background are the trees that live on after their commands, by their account.
var background = backgrounds{of: map[uint32][]*spared{}}

type backgrounds struct {
	mu sync.Mutex
	of map[uint32][]*spared // guarded by mu
}

// spared is what a command has left behind and may live on.
type spared struct {
	group  string // the folder of its control group; "" if it has none
	cookie string
	procs  []proc // some of what was left; not of one with a group
}

// maxNoted is how many processes of a tree without a control group are noted.
const maxNoted = 16

// add notes a tree, unless the account has too many already.
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

// forget forgets the trees that have ended. It looks at processes without the lock.
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

// living tells which of an account's trees have a process; seen is a look that begins later.
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
