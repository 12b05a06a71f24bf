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

// Admission separates the jobs of a deleted account from those of a new account with the same uid.
type Admission struct {
	Log    *slog.Logger
	Lock   *settings.Lock // the settings lock
	Owners *Owners
	*Rights
	StoreNodeRecord func(context.Context) error // stores which jobs this node may claim
}

// This file separates the jobs of a deleted account from those of a new account with the same uid.
//
// The store keeps the user name of each uid that has enqueued a job. If the system later returns another name
// for the uid, the uid belongs to a new account. The service then moves the old jobs to a negative uid, which
// represents the former owner, before it answers the new account's request. If the system returns no name for a
// uid, its jobs keep their owner.

const (
	// nameValidity is how long a looked-up name of a uid is used for jobs that are about to start.
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
	NameCache         sync.Map       // uid → name of each admitted peer with a right and a name
	ownerCheckRequest chan struct{}  // wake-up: look up every uid again

	mu              sync.Mutex
	names           map[int]string      // uid → name as stored; guarded by mu
	formerNames     map[int]string      // negative uid → name of an owner that has lost its uid; guarded by mu
	unseparatedUIDs map[int]bool        // uids whose jobs may be only partly separated; guarded by mu
	NameLookups     map[int]*NameLookup // look-ups of names for jobs that are about to start, by uid; guarded by mu

	unknownUIDs map[int]bool // uids that have an account on other nodes but not on this one; guarded by mu
}

// NameLookup is one look-up of a uid's name.
type NameLookup struct {
	Done   chan struct{} // closed once Name and DoneAt are set
	Name   string        // "" if the system returned no name
	DoneAt time.Time     // when the look-up ended

	timedOut bool // a caller's wait for this look-up has timed out; guarded by Owners.mu
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
	maps.Copy(names, o.names) // keep the names that RememberName has added since the last load
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

// RememberName caches the name under which a uid has enqueued a job. If the cache already has a name for the
// uid, it keeps that name.
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

// storedName returns the stored name of a uid's owner, or "" if the uid has none. A negative uid is that of a
// former owner.
func (o *Owners) storedName(uid int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uid < 0 {
		return o.formerNames[uid]
	}
	return o.names[uid]
}

// UnknownUIDs returns the uids that have an account on other nodes but not on this one.
func (o *Owners) UnknownUIDs() map[int]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.unknownUIDs)
}

// ownerUIDs returns the uids of all owners, sorted.
func (o *Owners) ownerUIDs() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.names))
}

// FormerNames returns the names of the former owners, by their negative uids.
func (o *Owners) FormerNames() map[int]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.formerNames)
}

// RequestOwnerCheck makes SeparateOwners look up the names of all uids again.
func (o *Owners) RequestOwnerCheck() { queue.TrySend(o.ownerCheckRequest, struct{}{}) }

// mayChangeOwner reports whether another account may get a uid. Root and the service's own account always
// keep their uids.
func mayChangeOwner(uid int) bool { return uid > 0 && uid != accounts.CurrentUser() }

// Admit implements control.Authorizer. If the peer's uid belonged to another account before, Admit first
// separates the jobs of that account from the uid.
func (a *Admission) Admit(ctx context.Context, p *control.Peer) error {
	if p.Right == control.RightNone || !mayChangeOwner(p.UID) {
		return nil
	}
	name := a.Owners.directory.accountName(p.UID)
	if name == "" {
		return nil
	}
	a.Owners.NameCache.Store(p.UID, name)
	if err := a.separateOwner(ctx, p.UID, name); err != nil {
		return queue.Errorf(queue.CodeUnavailable, "the service cannot serve you yet: your uid %d belonged to another "+
			"account before, and the service could not take that account's jobs away from the uid (%v)", p.UID, err)
	}
	return nil
}

// separateOwner moves the jobs of a uid's former owner to a negative uid. It does nothing if the uid's current
// name equals the stored name. It also finishes a separation that an earlier service has begun.
func (a *Admission) separateOwner(ctx context.Context, uid int, name string) error {
	a.Owners.mu.Lock()
	former, unfinished := a.Owners.names[uid], a.Owners.unseparatedUIDs[uid]
	a.Owners.mu.Unlock()
	if former == name || former == "" && !unfinished {
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
	a.Owners.mu.Lock()
	if former == "" {
		delete(a.Owners.unseparatedUIDs, uid)
	} else if a.Owners.names[uid] == former {
		delete(a.Owners.names, uid)
	}
	a.Owners.mu.Unlock()
	if former == "" {
		return nil
	}
	a.Log.Warn("a uid now belongs to another account; only admins can see and change the jobs of the former account",
		"uid", uid, "was", former, "is", name)
	a.Rights.ResolveAccess() // resolve [access] again, since it may name the former account
	return a.Owners.Load(ctx)
}

// errOwnedElsewhere means that separateOwner cannot move the jobs now, because their owner's account may still
// exist on another node.
var errOwnedElsewhere = errors.New("if the old account is right, give it this uid on this node; if the new one is " +
	"right, stop all other nodes until this node logs \"a uid now belongs to another account\"")

// SeparateOwners checks the owners of all uids at the start and after each RequestOwnerCheck, until ctx ends.
// It checks again after separationRetryDelay if a check failed or other nodes can use the store.
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

// UpdateUnknownUIDs makes this node skip the jobs of users that have no account on it, but may have one on
// another node. It no longer skips the jobs of users that have an account here now. See docs/decisions/0017.
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

// lacksAccount reports whether jobs of a uid must run as an account that does not exist on this node.
func (o *Owners) lacksAccount(uid int) bool {
	return o.jobAccount.RunsAsJobAccount && mayChangeOwner(uid) && o.lookUpName(uid, false) == "" &&
		o.lookUpName(uid, true) == ""
}

// CheckOwner returns an error if a job must not start. It must not start if the uid that enqueued it, or that
// it runs as, now belongs to another account. If the queue has other nodes, it also must not start if this node
// lacks the account that the job runs as. Each look-up takes at most NameLookupTimeout.
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

// addWrongNodeError marks an error of CheckOwner with worker.ErrWrongNode if other nodes are running. The job
// then waits, because another node may be able to start it.
func (o *Owners) addWrongNodeError(err error) error {
	if err == nil || !o.HasOtherNodes() {
		return err
	}
	return fmt.Errorf("%w: %w", worker.ErrWrongNode, err)
}

// checkNotRenamed returns an error if the name of a uid is no longer oldName.
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

// lookUpName returns the name of a uid. The name may have been cached for at most nameValidity. If bypassCache
// is set, lookUpName always asks the system. It returns "" if the look-up takes longer than NameLookupTimeout.
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
			// This goroutine ends when the directory answers, which takes a few seconds at most.
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

// expired reports whether a caller must look the name up again. It returns false while the look-up is in
// progress. If bypassCache is true, every ended look-up has expired.
func (n *NameLookup) expired(bypassCache bool) bool {
	select {
	case <-n.Done:
		return bypassCache || time.Since(n.DoneAt) >= nameValidity
	default:
		return false
	}
}

// FormerUID returns the negative uid of the former owner with a given name. If there are several, it
// returns that of the newest one.
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
	if name != strconv.Itoa(uid) { // do not cache a number, since the uid may get a name soon
		o.NameCache.Store(uid, name)
	}
	return name
}

// CachedUserName is like UserName, but does not query the system. If the name is not cached, it returns the uid
// as text.
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
