package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Admission keeps a new account from getting the jobs of a deleted account that had the same uid.
type Admission struct {
	Log    *slog.Logger
	Lock   *settings.Lock // the settings lock
	Owners *Owners
	*Rights
	StoreNodeRecord func(context.Context) error // stores this node's record, which determines which jobs it may claim
}

// This file separates the jobs of a deleted account from those of a new account with the same uid.
//
// The store keeps the user name of each uid that has enqueued a job. If the system later returns another name
// for the uid, the uid belongs to a new account. Before the service answers a request of this account, it
// moves the old jobs to a negative uid, which means a former owner. If the system returns no name for a uid,
// its jobs keep their owner.

const (
	// nameValidity is how long the name of a uid is cached for jobs that are about to start.
	nameValidity = time.Second
	// NameLookupTimeout is how long the start of a job waits for the name of a uid.
	NameLookupTimeout = 200 * time.Millisecond
	maxNameLookups    = 10_000 // maximum number of remembered look-ups
	// separationRetryDelay is how long SeparateOwners waits before it checks the owners again.
	separationRetryDelay = time.Minute
)

// Owners caches the name of the account that owns the jobs of each uid. See docs/decisions/0078.
type Owners struct {
	store             store.Store
	cluster           store.Cluster // nil if no other node can use the store
	directory         *Directory
	jobAccount        worker.Account // account that jobs run as
	NameCache         sync.Map       // uid → name of each admitted peer that has a right and a name
	ownerCheckRequest chan struct{}  // requests to look up the names of all uids again

	mu              sync.Mutex
	names           map[int]string      // uid → name as stored; guarded by mu
	formerNames     map[int]string      // negative uid → name of a former owner, which has lost the uid; guarded by mu
	unseparatedUIDs map[int]bool        // uids that may still have jobs of a former owner; guarded by mu
	NameLookups     map[int]*NameLookup // look-ups of names for jobs that are about to start, by uid; guarded by mu

	// unknownUIDs contains uids that may have an account on other nodes, but have none on this one; guarded by mu.
	unknownUIDs map[int]bool
}

// NameLookup is one look-up of a uid's name.
type NameLookup struct {
	Done   chan struct{} // closed once Name and DoneAt are set
	Name   string        // "" if the system returned no name
	DoneAt time.Time     // when the look-up ended

	timedOut bool // a caller stopped waiting for this look-up; guarded by Owners.mu
}

// NewOwners returns an empty cache. Load fills it.
func NewOwners(s store.Store, c store.Cluster, d *Directory, account worker.Account) *Owners {
	return &Owners{store: s, cluster: c, directory: d, jobAccount: account, ownerCheckRequest: make(chan struct{}, 1)}
}

// Load replaces the cache by the owners in the store.
func (o *Owners) Load(ctx context.Context) error {
	list, unfinished, err := o.store.Owners(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	names, former := maps.Clone(list), map[int]string{}
	maps.Copy(names, o.names) // keep the names that RememberName has added
	for uid, name := range list {
		if uid < 0 {
			former[uid] = name
			delete(names, uid)
		}
	}
	o.names, o.formerNames, o.unseparatedUIDs = names, former, map[int]bool{}
	for _, uid := range unfinished {
		o.unseparatedUIDs[uid] = true
	}
	return nil
}

// RememberName caches the name under which a uid has enqueued a job, unless the cache already has a name for
// this uid.
func (o *Owners) RememberName(uid int, name string) {
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

// storedName returns the stored name of a uid's owner, or "" if no name is stored. A negative uid means a former
// owner.
func (o *Owners) storedName(uid int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uid < 0 {
		return o.formerNames[uid]
	}
	return o.names[uid]
}

// MayHaveFormerJobs reports whether a uid may still have jobs of a former owner. A running job keeps its uid
// until it ends.
func (o *Owners) MayHaveFormerJobs(uid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unseparatedUIDs[uid]
}

// UnknownUIDs returns the uids whose users may have an account on other nodes, but have none on this one.
func (o *Owners) UnknownUIDs() map[int]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.unknownUIDs)
}

// ownerUIDs returns the uids of all current owners of jobs, sorted.
func (o *Owners) ownerUIDs() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.names))
}

// FormerNames returns the names of the former owners of jobs, by their negative uids.
func (o *Owners) FormerNames() map[int]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.formerNames)
}

// RequestOwnerCheck makes SeparateOwners look up the names of all uids again.
func (o *Owners) RequestOwnerCheck() { queue.TrySend(o.ownerCheckRequest, struct{}{}) }

// mayChangeOwner reports whether a uid may later belong to another account. It returns false for root and for
// the service's own account, for which this is not considered.
func mayChangeOwner(uid int) bool { return uid > 0 && uid != accounts.CurrentUser() }

// Admit implements control.Authorizer. If the peer's uid belonged to another account before, Admit first
// separates the jobs and the right of that account from the uid.
func (a *Admission) Admit(ctx context.Context, p *control.Peer) error {
	if p.Right == control.RightNone || !mayChangeOwner(p.UID) {
		return nil
	}
	name := a.Owners.directory.accountName(p.UID)
	if name == "" {
		return nil
	}
	a.Owners.NameCache.Store(p.UID, name)
	a.Rights.resolveAccessIfRenamed(p.UID, name)
	if err := a.separateOwner(ctx, p.UID, name); err != nil {
		return queue.Errorf(queue.CodeUnavailable, "the service cannot serve you yet: your uid %d belonged to another "+
			"account before, and the service could not take that account's jobs away from the uid (%v)", p.UID, err)
	}
	return nil
}

// separateOwner moves the jobs of a uid's former owner to a negative uid. name is the uid's current name; if
// it equals the stored name, separateOwner does nothing. It also completes a move that an earlier service has
// begun.
func (a *Admission) separateOwner(ctx context.Context, uid int, name string) error {
	a.Owners.mu.Lock()
	former, unfinished := a.Owners.names[uid], a.Owners.unseparatedUIDs[uid]
	a.Owners.mu.Unlock()
	if former == name {
		former = "" // the current owner enqueued jobs before; a move of an earlier owner's jobs may be unfinished
	}
	if former == "" && !unfinished {
		return nil
	}
	if former != "" && a.Owners.HasOtherNodes() { // on another node, the uid may still belong to the former owner
		return fmt.Errorf("the uid belongs to %s on this node, but belonged to %s when jobs were enqueued; %w", name, former,
			errOwnedElsewhere)
	}
	for more := true; more; {
		var err error
		if more, err = a.Owners.store.Disown(ctx, uid, former); err != nil {
			return err
		}
	}
	// Load now. Once the former name is removed below, other peers with this uid are admitted without waiting.
	if err := a.Owners.Load(ctx); err != nil || former == "" {
		return err
	}
	a.Owners.mu.Lock()
	if a.Owners.names[uid] == former {
		delete(a.Owners.names, uid)
	}
	a.Owners.mu.Unlock()
	a.Log.Warn("a uid now belongs to another account; only admins can see and change the jobs of the former account",
		"uid", uid, "was", former, "is", name)
	a.Rights.ResolveAccess() // resolve [access] again, since it may name the former account
	return nil
}

// errOwnedElsewhere means that separateOwner cannot move the jobs of a former owner now: on another node,
// this account may still exist.
var errOwnedElsewhere = errors.New("if the old account is right, give it this uid on this node; if the new one is " +
	"right, stop all other nodes until this node logs \"a uid now belongs to another account\"")

// SeparateOwners calls separateOwner for the owners of all jobs until ctx ends: at the start, after each
// RequestOwnerCheck, and every separationRetryDelay if the last call failed or other nodes can use the store.
func (a *Admission) SeparateOwners(ctx context.Context) {
	warned := map[int]bool{}
	for {
		var retryTimer <-chan time.Time
		if a.Owners.cluster != nil {
			retryTimer = time.After(separationRetryDelay)
			a.UpdateUnknownUIDs(ctx)
		}
		for _, uid := range a.Owners.ownerUIDs() {
			name := a.Owners.directory.accountName(uid)
			if name == "" || !mayChangeOwner(uid) {
				continue
			}
			if err := a.separateOwner(ctx, uid, name); errors.Is(err, errOwnedElsewhere) {
				if retryTimer = time.After(separationRetryDelay); !warned[uid] {
					warned[uid] = true
					a.Log.Warn("this node does not run the jobs of this uid", "uid", uid, "error", err)
				}
			} else if err != nil && ctx.Err() == nil {
				a.Log.Error("a uid belongs to a new account, which cannot use the service until the jobs of the former "+
					"account are separated from the uid; this failed, and the service tries again", "uid", uid, "error", err)
				retryTimer = time.After(separationRetryDelay)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-a.Owners.ownerCheckRequest:
		case <-retryTimer:
		}
	}
}

// UpdateUnknownUIDs stores the uids whose jobs this node skips: those whose users have no account on this
// node, but may have one on another. See docs/decisions/0017.
func (a *Admission) UpdateUnknownUIDs(ctx context.Context) {
	unknown := map[int]bool{}
	err := a.Owners.Load(ctx) // load again: users may have enqueued on other nodes
	if err == nil && a.Owners.HasOtherNodes() {
		for _, uid := range a.Owners.ownerUIDs() {
			name := a.Owners.storedName(uid)
			if a.Owners.checkNotRenamed(uid, name) != nil || a.Owners.lacksAccount(uid) {
				unknown[uid] = true
			}
		}
	}
	a.Owners.mu.Lock()
	unchanged := maps.Equal(a.Owners.unknownUIDs, unknown)
	if err == nil {
		a.Owners.unknownUIDs = unknown
	}
	a.Owners.mu.Unlock()
	if err == nil && !unchanged {
		err = a.Lock.RunLocked(ctx, func() error { return a.StoreNodeRecord(ctx) })
	}
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("this node could not check which users have no account here; until a later check succeeds, it may "+
			"take jobs that it cannot start", "error", err)
	}
}

// lacksAccount reports whether jobs of a uid run as an account that this node does not have.
func (o *Owners) lacksAccount(uid int) bool {
	return o.jobAccount.RunsAsJobAccount && mayChangeOwner(uid) && o.lookUpName(uid, false) == "" &&
		o.lookUpName(uid, true) == ""
}

// CheckOwner returns an error if a job must not start, because the uid that enqueued it, or that it runs as,
// now belongs to another account. While other nodes are running, it also returns an error if this node does
// not have the account that the job runs as. Each look-up takes at most NameLookupTimeout.
func (o *Owners) CheckOwner(j *queue.Job) error {
	name := o.storedName(j.UID)
	if j.AsUID == nil {
		name = j.User
	} else if err := o.checkNotRenamed(*j.AsUID, j.User); err != nil {
		return o.addWrongNodeError(err)
	}
	err := o.checkNotRenamed(j.UID, name)
	if err != nil {
		o.RequestOwnerCheck()
	}
	if runs := o.jobAccount.RunsAs(j); err == nil && o.HasOtherNodes() && o.lacksAccount(runs) {
		err = fmt.Errorf("uid %d has no account on this node; create the account, or start a node that has it", runs)
		o.RequestOwnerCheck()
	}
	return o.addWrongNodeError(err)
}

// addWrongNodeError wraps an error of CheckOwner in worker.ErrWrongNode if other nodes are running, because
// one of them may be able to start the job. The job then waits.
func (o *Owners) addWrongNodeError(err error) error {
	if err == nil || !o.HasOtherNodes() {
		return err
	}
	return fmt.Errorf("%w: %w", worker.ErrWrongNode, err)
}

// checkNotRenamed returns an error if the system now returns another name than oldName for a uid.
func (o *Owners) checkNotRenamed(uid int, oldName string) error {
	if oldName == "" || oldName == strconv.Itoa(uid) || !mayChangeOwner(uid) {
		return nil
	}
	name := o.lookUpName(uid, false)
	if name != oldName {
		name = o.lookUpName(uid, true) // the name may have changed since it was cached
	}
	if name != "" && name != oldName {
		return fmt.Errorf("uid %d belonged to %s when the job was enqueued, but belongs to %s now", uid, oldName, name)
	}
	return nil
}

// lookUpName returns the name of a uid. It uses a cached name that is not older than nameValidity, unless
// bypassCache is set. It returns "" if the look-up takes longer than NameLookupTimeout.
func (o *Owners) lookUpName(uid int, bypassCache bool) string {
	o.mu.Lock()
	n := o.NameLookups[uid]
	if n == nil || n.expired(bypassCache) {
		if len(o.NameLookups) >= maxNameLookups || o.NameLookups == nil {
			o.NameLookups = map[int]*NameLookup{}
		}
		n = &NameLookup{Done: make(chan struct{})}
		o.NameLookups[uid] = n
		go func() {
			// This goroutine ends when the directory service responds, which takes a few seconds at most.
			n.Name = o.directory.accountName(uid)
			n.DoneAt = time.Now()
			close(n.Done)
		}()
	}
	slow := n.timedOut
	o.mu.Unlock()
	if !slow {
		select {
		case <-n.Done:
			return n.Name
		case <-time.After(NameLookupTimeout):
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n.timedOut = true
	return ""
}

// expired reports whether the result of the look-up must not be used again. It returns false while the
// look-up is in progress. If bypassCache is set, no result may be used again.
func (n *NameLookup) expired(bypassCache bool) bool {
	select {
	case <-n.Done:
		return bypassCache || time.Since(n.DoneAt) >= nameValidity
	default:
		return false
	}
}

// FormerUID returns the negative uid of the former owner with the given name. If several have this name, it
// returns the uid of the newest one.
func (o *Owners) FormerUID(name string) (uid int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, owner := range o.formerNames {
		// Each new former owner gets a lower uid than the others, so the newest has the lowest.
		if owner == name && id < uid {
			uid, ok = id, true
		}
	}
	return uid, ok
}

// UserName returns the name of a uid. If the uid has no name, it returns the uid as text.
func (o *Owners) UserName(uid int) string {
	if name, ok := o.NameCache.Load(uid); ok {
		return name.(string)
	}
	if name := o.storedName(uid); name != "" || uid < 0 {
		return name
	}
	name := o.directory.UserName(uid)
	if name != strconv.Itoa(uid) { // the uid may get a name soon, so do not cache the number
		o.NameCache.Store(uid, name)
	}
	return name
}

// CachedUserName returns the cached or stored name of a uid without asking the system, or else the uid as
// text.
func (o *Owners) CachedUserName(uid int) string {
	if name, ok := o.NameCache.Load(uid); ok {
		return name.(string)
	}
	return cmp.Or(o.storedName(uid), fmt.Sprint(uid))
}

// UserNameOrEmpty returns the name of a uid, or "" if it is unknown.
func (o *Owners) UserNameOrEmpty(uid int) string {
	if name := o.UserName(uid); name != strconv.Itoa(uid) {
		return name
	}
	return ""
}

// HasOtherNodes reports whether other nodes that share the queue are running.
func (o *Owners) HasOtherNodes() bool { return o.cluster != nil && o.cluster.HasOthers() }
