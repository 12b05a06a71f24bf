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

// A uid may be given to another account once its own is deleted. What the former account
// has in the queue is not the next one's: the store keeps the name of each uid that has
// enqueued, and where the system has another name for it now, the uid is taken from its
// former owner before the next one is answered. A uid of which the system says nothing
// keeps its owner.

const (
	nameFor     = time.Second            // the name of a uid holds for jobs that are about to start
	nameWithin  = 200 * time.Millisecond // they wait for it
	maxNames    = 10_000                 // bounds what is remembered of them
	settleAgain = time.Minute            // after the store has refused to take a uid from its owner
	namedGone   = 20                     // former owners whom doctor names at once
)

// owners are the accounts that have jobs.
// See docs/decisions/0078.
type owners struct {
	look chan struct{} // has every uid looked up

	mu     sync.Mutex
	names  map[int]string  // of uids, as the store has them; guarded by mu
	former map[int]string  // those that have lost their uid, by uids below 0; guarded by mu
	moving map[int]bool    // uids that may not have been taken from those to the end; guarded by mu
	now    map[int]*naming // names of uids that were looked up for jobs; guarded by mu

	strangers map[int]bool // uids whose accounts other machines of the queue have, and this one not; guarded by mu
}

// naming is the look-up of a uid's name.
type naming struct {
	done chan struct{} // closed once there are:
	name string        // "" if nothing is known
	at   time.Time

	slow bool // somebody has waited for it in vain; guarded by the mu of owners
}

// load reads what the store knows of owners.
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
	maps.Copy(names, o.names) // what was noted since
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

// note remembers the name with which a uid has enqueued.
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

// of is the name of a uid's owner, as the store has it; "" if it has none.
func (o *owners) of(uid int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uid < 0 {
		return o.former[uid]
	}
	return o.names[uid]
}

// uids lists those that have owners.
func (o *owners) uids() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.names))
}

// lost lists the former owners, by the uids that stand for them.
func (o *owners) lost() map[int]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.former)
}

// moves reports whether a uid may not have been taken from its former owner to the end.
func (o *owners) moves(uid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moving[uid]
}

// moved notes that it has.
func (o *owners) moved(uid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.moving, uid)
}

// again has all uids looked up.
func (o *owners) again() {
	select {
	case o.look <- struct{}{}:
	default: // it is asked for already
	}
}

// owned reports whether jobs of a uid are one account's, who may lose the uid: those of
// root and of the service's own account are not.
func owned(uid int) bool { return uid > 0 && uid != accounts.Self() }

// Admit implements control.Authorizer: what a former account of the peer's uid has is taken
// from the uid before the peer is answered.
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
		return queue.Errorf(queue.CodeUnavailable, "your uid %d belonged to another account, whose jobs are not separated from yours yet (%v); try again later", p.UID, err)
	}
	return nil
}

// settleOwner takes a uid from its owner, if that has another name than its account has
// now, and finishes that if it was not finished when the service ended.
func (s *Service) settleOwner(ctx context.Context, uid int, name string) error {
	was := s.owners.of(uid)
	if was == name || was == "" && !s.owners.moves(uid) {
		return nil
	}
	if was != "" && s.hasOthers() { // on which the uid may be whose it was
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
	s.lookUp() // [access] may mean the former one
	return s.owners.load(ctx, s.store)
}

// errOwnedElsewhere says that another machine may know an owner whom this one does not.
var errOwnedElsewhere = errors.New("jobs of a former account are separated only while no other node runs")

// settleOwners looks at all uids at the start, when the settings were read again, and
// when a job was not started because its uid belongs to another account.
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
				s.log.Error("the jobs of the uid's former account are not separated from the new account yet; trying again", "uid", uid, "error", err)
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

// meetStrangers has the store claim no jobs of users whom other machines know and this one does not, and those of users whom it knows
// by now.
// See docs/decisions/0017.
func (s *Service) meetStrangers(ctx context.Context) {
	strangers := map[int]bool{}
	err := s.owners.load(ctx, s.store) // who has enqueued elsewhere
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

// unknownHere reports whether a uid has no account here that jobs would run as.
func (s *Service) unknownHere(uid int) bool {
	return s.account.Each && owned(uid) && s.nameSoon(uid, false) == "" && s.nameSoon(uid, true) == ""
}

// disowned says why a job may not start: a uid that it was enqueued by, or is to run as,
// belongs to another account now. It waits nameWithin at most for each uid.
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

// notHere is why a job may not start: on other machines of the queue, if there are some, it may.
func (s *Service) notHere(why error) error {
	if why == nil || !s.hasOthers() {
		return why
	}
	return fmt.Errorf("%w: %w", worker.ErrNotHere, why)
}

// renamed says that a uid has another name than it had, if it has one and had one.
func (s *Service) renamed(uid int, was string) error {
	if was == "" || was == strconv.Itoa(uid) || !owned(uid) {
		return nil
	}
	is := s.nameSoon(uid, false)
	if is != was {
		is = s.nameSoon(uid, true) // it may have changed since it was looked up
	}
	if is != "" && is != was {
		return fmt.Errorf("uid %d belonged to %s when the job was enqueued, but belongs to %s now", uid, was, is)
	}
	return nil
}

// nameSoon is the name of a uid as of a moment ago or, if fresh, as of now; "" if that cannot
// be told in time.
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
		go func() { // ends with the directory's answer, for which it waits a few seconds at most
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

// old reports whether a name is to be looked up again.
func (n *naming) old(fresh bool) bool {
	select {
	case <-n.done:
		return fresh || time.Since(n.at) >= nameFor
	default:
		return false
	}
}

// examineOwners tells of jobs whose accounts have lost their uids. Where none has it looks at
// no job.
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

// formerUID is what stands for the newest former owner of a name.
func (o *owners) formerUID(name string) (uid int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for each, is := range o.former {
		if is == name && each < uid { // the newest has the least
			uid, ok = each, true
		}
	}
	return uid, ok
}
