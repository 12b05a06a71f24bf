package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// This file separates the jobs of a deleted account from those of a new account with the same uid.
//
// The store keeps the name of each uid that has enqueued a job. When the system has another name for the uid,
// the service gives the old jobs to a negative uid, which represents the former owner. It does so before it
// answers a request of the new account. A uid for which the system returns no name keeps its owner.

const (
	// How long a looked-up name of a uid is valid for jobs that are about to start.
	nameFor    = time.Second
	nameWithin = 200 * time.Millisecond // how long the start of a job waits for a look-up
	maxNames   = 10_000                 // maximum number of remembered look-ups
	// Delay after the store has refused to separate a uid from its former owner.
	settleAgain = time.Minute
	namedGone   = 20 // maximum number of former owners that doctor names in one finding
)

// owners caches which accounts own the jobs in the store. See docs/decisions/0078.
type owners struct {
	look chan struct{} // wake-up: look up every uid again

	mu     sync.Mutex
	names  map[int]string  // uid → name as stored; guarded by mu
	former map[int]string  // negative uid → name of an owner that has lost its uid; guarded by mu
	moving map[int]bool    // uids whose separation may be unfinished; guarded by mu
	now    map[int]*naming // look-ups of names for jobs that are about to start, by uid; guarded by mu

	strangers map[int]bool // uids that have an account on other nodes but not on this one; guarded by mu
}

// naming is one look-up of a uid's name.
type naming struct {
	done chan struct{} // closed once name and at are set
	name string        // "" if the system returned no name
	at   time.Time

	slow bool // a caller has timed out waiting for this look-up; guarded by the mu of owners
}

// load reads all owners from the store.
func (o *owners) load(ctx context.Context, s interface {
	Owners(context.Context) (names map[int]string, moving []int, err error)
}) error {
	list, moving, err := s.Owners(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	names, former := maps.Clone(list), map[int]string{}
	maps.Copy(names, o.names) // keep names noted since the last load
	for uid, name := range list {
		if uid < 0 {
			former[uid] = name
			delete(names, uid)
		}
	}
	o.names, o.former, o.moving = names, former, map[int]bool{}
	for _, uid := range moving {
		o.moving[uid] = true
	}
	return nil
}

// note remembers the name under which a uid has enqueued. It does not replace a name.
func (o *owners) note(uid int, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if name == "" || o.names[uid] != "" {
		return
	}
	if o.names == nil {
		o.names = map[int]string{}
	}
	o.names[uid] = name
}

// of returns the stored name of a uid's owner, or "" if it has none.
func (o *owners) of(uid int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uid < 0 {
		return o.former[uid]
	}
	return o.names[uid]
}

// uids returns the uids that have owners, sorted.
func (o *owners) uids() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.names))
}

// lost returns the names of the former owners, by their negative uids.
func (o *owners) lost() map[int]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.former)
}

// moves reports whether the separation of a uid from its former owner may be unfinished.
func (o *owners) moves(uid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moving[uid]
}

// moved records that the separation of a uid is finished.
func (o *owners) moved(uid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.moving, uid)
}

// again requests a look-up of all uids.
func (o *owners) again() {
	select {
	case o.look <- struct{}{}:
	default: // a look-up is already requested
	}
}

// owned reports whether the jobs of a uid belong to an account that may lose the uid. Root and the service's
// own account keep theirs.
func owned(uid int) bool { return uid > 0 && uid != accounts.Self() }

// Admit implements control.Authorizer. If the peer's uid belonged to another account, Admit separates the
// jobs of that account before the peer is answered.
func (s *Service) Admit(ctx context.Context, p *control.Peer) error {
	if p.Right == control.None || !owned(p.UID) {
		return nil
	}
	name := s.accountName(p.UID)
	if name == "" {
		return nil
	}
	s.users.Store(p.UID, name)
	if err := s.settleOwner(ctx, p.UID, name); err != nil {
		return queue.Errorf(queue.CodeUnavailable, "your uid %d belonged to another account before, and the jobs of that account are not separated from yours yet (%v); try again later", p.UID, err)
	}
	return nil
}

// settleOwner separates a uid from its stored owner if its account has another name now. It also finishes a
// separation that an earlier service has begun.
func (s *Service) settleOwner(ctx context.Context, uid int, name string) error {
	was := s.owners.of(uid)
	if was == name || was == "" && !s.owners.moves(uid) {
		return nil
	}
	if was != "" && s.hasOthers() { // on another node, the uid may still belong to the former owner
		return fmt.Errorf("the uid belongs to %s on this node, but belonged to %s when jobs were enqueued; nodes that share a queue need the same accounts (%w)", name, was, errOwnedElsewhere)
	}
	for more := true; more; {
		var err error
		if more, err = s.store.Disown(ctx, uid, was); err != nil {
			return err
		}
	}
	if was == "" {
		s.owners.moved(uid)
		return nil
	}
	s.owners.mu.Lock()
	if s.owners.names[uid] == was {
		delete(s.owners.names, uid)
	}
	s.owners.mu.Unlock()
	s.log.Warn("a uid now belongs to another account; only admins can see and change the jobs of the former account", "uid", uid, "was", was, "is", name)
	s.lookUp() // [access] may name the former account
	return s.owners.load(ctx, s.store)
}

// errOwnedElsewhere says that another machine may know an owner whom this one does not.
var errOwnedElsewhere = errors.New("the jobs of a uid's former account can be separated from those of its new account only while no other node runs")

// settleOwners checks the owners of all uids: at the start, after the settings were read again, and after a
// job was not started because its uid belongs to another account. It retries failures every settleAgain.
func (s *Service) settleOwners(ctx context.Context) {
	told := map[int]bool{}
	for {
		var again <-chan time.Time
		if s.cluster != nil {
			again = time.After(settleAgain)
			s.meetStrangers(ctx)
		}
		for _, uid := range s.owners.uids() {
			name := s.accountName(uid)
			if name == "" || !owned(uid) {
				continue
			}
			if err := s.settleOwner(ctx, uid, name); errors.Is(err, errOwnedElsewhere) {
				if again = time.After(settleAgain); !told[uid] {
					told[uid] = true
					s.log.Warn("this node does not run the jobs of this uid", "uid", uid, "error", err)
				}
			} else if err != nil && ctx.Err() == nil {
				s.log.Error("the jobs of the uid's former account are not separated from those of its new account yet; trying again", "uid", uid, "error", err)
				again = time.After(settleAgain)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.owners.look:
		case <-again:
		}
	}
}

// meetStrangers makes the store skip the jobs of users that have an account on other nodes but not on this
// one. It also makes the store claim again the jobs of users that now have an account here. See
// docs/decisions/0017.
func (s *Service) meetStrangers(ctx context.Context) {
	strangers := map[int]bool{}
	err := s.owners.load(ctx, s.store) // includes users that have enqueued on other nodes
	if err == nil && s.hasOthers() {
		for _, uid := range s.owners.uids() {
			was := s.owners.of(uid)
			if s.renamed(uid, was) != nil || s.unknownHere(uid) {
				strangers[uid] = true
			}
		}
	}
	s.owners.mu.Lock()
	same := maps.Equal(s.owners.strangers, strangers)
	s.owners.mu.Unlock()
	if err == nil && same {
		return
	}
	if err == nil {
		s.owners.mu.Lock()
		s.owners.strangers = strangers
		s.owners.mu.Unlock()
		err = s.inTurn(ctx, func() error { return s.bindNode(ctx) })
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot check which users exist only on other nodes; checking again later", "error", err)
	}
}

// unknownHere reports whether jobs of a uid would need an account that this node does not have.
func (s *Service) unknownHere(uid int) bool {
	return s.account.Each && owned(uid) && s.nameSoon(uid, false) == "" && s.nameSoon(uid, true) == ""
}

// disowned returns why a job must not start: the uid that enqueued it, or that it runs as, now belongs to
// another account. It waits at most nameWithin for each look-up.
func (s *Service) disowned(j *queue.Job) error {
	was := s.owners.of(j.UID)
	if j.AsUID == nil {
		was = j.User
	} else if err := s.renamed(*j.AsUID, j.User); err != nil {
		return s.notHere(err)
	}
	err := s.renamed(j.UID, was)
	if err != nil {
		s.owners.again()
	}
	if runs := s.account.RunsAs(j); err == nil && s.hasOthers() && s.unknownHere(runs) {
		err = fmt.Errorf("uid %d has no account on this node", runs)
		s.owners.again()
	}
	return s.notHere(err)
}

// notHere marks the reason why a job may not start on this node. If the queue has other nodes, the job may
// start on one of them.
func (s *Service) notHere(why error) error {
	if why == nil || !s.hasOthers() {
		return why
	}
	return fmt.Errorf("%w: %w", worker.ErrNotHere, why)
}

// renamed returns an error if a uid had a name and now has a different one.
func (s *Service) renamed(uid int, was string) error {
	if was == "" || was == strconv.Itoa(uid) || !owned(uid) {
		return nil
	}
	is := s.nameSoon(uid, false)
	if is != was {
		is = s.nameSoon(uid, true) // the name may have changed since it was cached
	}
	if is != "" && is != was {
		return fmt.Errorf("uid %d belonged to %s when the job was enqueued, but belongs to %s now", uid, was, is)
	}
	return nil
}

// nameSoon returns the name of a uid, cached for at most nameFor or, if fresh, just looked up. It returns ""
// if the look-up takes longer than nameWithin.
func (s *Service) nameSoon(uid int, fresh bool) string {
	o := &s.owners
	o.mu.Lock()
	n := o.now[uid]
	if n == nil || n.old(fresh) {
		if len(o.now) >= maxNames || o.now == nil {
			o.now = map[int]*naming{}
		}
		n = &naming{done: make(chan struct{})}
		o.now[uid] = n
		go func() {
			// Ends when the directory answers, which takes a few seconds at most.
			n.name = s.accountName(uid)
			n.at = time.Now()
			close(n.done)
		}()
	}
	slow := n.slow
	o.mu.Unlock()
	if !slow {
		select {
		case <-n.done:
			return n.name
		case <-time.After(nameWithin):
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n.slow = true
	return ""
}

// old reports whether the name must be looked up again. A look-up in progress is not old.
func (n *naming) old(fresh bool) bool {
	select {
	case <-n.done:
		return fresh || time.Since(n.at) >= nameFor
	default:
		return false
	}
}

// examineOwners returns a doctor finding that lists accounts that have jobs but lost their uid. If no account
// has lost its uid, it reads no jobs.
func (s *Service) examineOwners(ctx context.Context) []store.Finding {
	lost, names := s.owners.lost(), map[string]bool{}
	f := store.Filter{Limit: store.MaxPage}
	for more := true; more && len(lost) > 0; more = f.Before != 0 {
		page, err := s.selected(ctx, f)
		if err != nil {
			return []store.Finding{{Check: "owners", Level: store.Warning, Message: "jobs of former accounts were not checked: " + err.Error(), Next: "try again later: queuectl doctor"}}
		}
		for _, ref := range page.Refs {
			if name, former := lost[ref.UID]; former {
				names[name] = true
				delete(lost, ref.UID)
			}
		}
		f.Before = page.Next
	}
	if len(names) == 0 {
		return nil
	}
	list := slices.Sorted(maps.Keys(names))
	if more := len(list) - namedGone; more > 0 {
		list = append(list[:namedGone], fmt.Sprintf("and %d more", more))
	}
	return []store.Finding{{
		Check: "owners", Level: store.Warning,
		Message: "these accounts no longer own their uids, so only admins can see and change their jobs: " + strings.Join(list, ", "),
		Next:    "list them: queuectl list --user NAME; run a job as another user: queuectl edit ID '{\"user\":\"ANOTHER\"}', then queuectl release ID; remove a job: queuectl rm ID",
	}}
}

// formerUID returns the negative uid of the newest former owner with a name.
func (o *owners) formerUID(name string) (uid int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for each, is := range o.former {
		if is == name && each < uid { // the newest has the lowest uid
			uid, ok = each, true
		}
	}
	return uid, ok
}
