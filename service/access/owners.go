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
	Log          *slog.Logger
	SettingsLock *settings.Lock // the settings lock
	*Owners
	*Rights
	StoreNodeRecord func(context.Context) error // stores this node's record, which determines which jobs it may claim
}

// This file separates the jobs of a deleted account from those of a new account with the same uid.
//
// The store keeps the user name of each uid that has enqueued a job. If the system later returns another name for the
// uid, the uid belongs to a new account. Before the service answers a request of the new account, it moves the old jobs
// to a negative uid, which means a former owner. If the system returns no name for a uid, the jobs of the uid keep
// their owner.

const (
	// cachedNameLifetime is how long the name of a uid is cached for jobs that are about to start.
	cachedNameLifetime = time.Second
	// NameLookupTimeout is how long the start of a job waits for the look-up of a uid's name.
	NameLookupTimeout    = 200 * time.Millisecond
	maxCachedNameLookups = 10_000 // maximum number of remembered look-ups
	// ownerSeparationRetryDelay is how long RunFormerOwnerSeparation waits before it checks the owners again.
	ownerSeparationRetryDelay = time.Minute
)

// Owners caches the name of the account that owns the jobs of each uid. See docs/decisions/0078.
type Owners struct {
	store                 store.Store
	cluster               store.Cluster // nil if no other node can use the store
	userDirectory         *UserDirectory
	jobAccount            worker.Account // account that jobs run as
	AdmittedPeerNameByUID sync.Map       // uid → name of each admitted peer that has a right and a name
	ownerNameCheckSignal  chan struct{}  // requests to look up the names of all uids again

	mu              sync.Mutex
	storedNameByUID map[int]string // uid → name as stored; guarded by mu
	// negative uid → name of a former owner, whose uid is reused; guarded by mu
	formerOwnerNameByUID    map[int]string
	uidsWithFormerOwnerJobs map[int]bool        // uids that may still have jobs of a former owner; guarded by mu
	NameLookupByUID         map[int]*NameLookup // look-ups of names for jobs that are about to start; guarded by mu

	// uidsWithoutAccount contains uids that may have an account on other nodes, but have no account on this node; guarded
	// by mu.
	uidsWithoutAccount map[int]bool
}

// NameLookup is one look-up of a uid's name.
type NameLookup struct {
	Done        chan struct{} // closed once the next three fields are set
	AccountName string        // "" if the uid has no account
	Err         error         // the system did not answer
	DoneAt      time.Time     // when the look-up ended

	callerTimedOut bool // a caller stopped waiting for this look-up; guarded by Owners.mu
}

// NewOwners returns an empty cache. Load fills it.
func NewOwners(s store.Store, c store.Cluster, d *UserDirectory, account worker.Account) *Owners {
	return &Owners{store: s, cluster: c, userDirectory: d, jobAccount: account,
		ownerNameCheckSignal: make(chan struct{}, 1)}
}

// LoadOwnerNames replaces the cache by the owners in the store.
func (o *Owners) LoadOwnerNames(ctx context.Context) error {
	list, unfinished, err := o.store.Owners(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	names, former := maps.Clone(list), map[int]string{}
	maps.Copy(names, o.storedNameByUID) // also keep the names that CacheOwnerName has added
	for uid, name := range list {
		if uid < 0 {
			former[uid] = name
			delete(names, uid)
		}
	}
	o.storedNameByUID, o.formerOwnerNameByUID, o.uidsWithFormerOwnerJobs = names, former, map[int]bool{}
	for _, uid := range unfinished {
		o.uidsWithFormerOwnerJobs[uid] = true
	}
	return nil
}

// CacheOwnerName caches the name under which a uid has enqueued a job, unless the cache already has a name for
// this uid.
func (o *Owners) CacheOwnerName(uid int, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if name == "" || o.storedNameByUID[uid] != "" {
		return
	}
	if o.storedNameByUID == nil {
		o.storedNameByUID = map[int]string{}
	}
	o.storedNameByUID[uid] = name
}

// storedOwnerName returns the stored name of a uid's owner, or "" if no name is stored. A negative uid means a former
// owner.
func (o *Owners) storedOwnerName(uid int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uid < 0 {
		return o.formerOwnerNameByUID[uid]
	}
	return o.storedNameByUID[uid]
}

// MayHaveFormerOwnerJobs reports whether a uid may still have jobs of a former owner. A running job keeps its uid
// until it ends.
func (o *Owners) MayHaveFormerOwnerJobs(uid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.uidsWithFormerOwnerJobs[uid]
}

// UIDsWithoutAccount returns the uids whose users may have an account on other nodes, but have no account on this node.
func (o *Owners) UIDsWithoutAccount() map[int]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.uidsWithoutAccount)
}

// ownerUIDs returns the uids of all current owners of jobs, sorted.
func (o *Owners) ownerUIDs() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.storedNameByUID))
}

// FormerOwnerNames returns the names of the former owners of jobs, by their negative uids.
func (o *Owners) FormerOwnerNames() map[int]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.formerOwnerNameByUID)
}

// RequestOwnerNameCheck makes RunFormerOwnerSeparation look up the names of all uids again.
func (o *Owners) RequestOwnerNameCheck() { queue.TrySend(o.ownerNameCheckSignal, struct{}{}) }

// uidMayBeReused reports whether a uid may later belong to another account. It returns false for root and for the
// service's own account: the code assumes that these uids are never reused.
func uidMayBeReused(uid int) bool { return uid > 0 && uid != accounts.CurrentUserID() }

// AdmitConnection implements control.Authorizer. If the peer's uid belonged to another account before, AdmitConnection
// first takes the jobs and the right of that account away from the uid.
func (a *Admission) AdmitConnection(ctx context.Context, p *control.Peer) error {
	if p.Right == control.RightNone || !uidMayBeReused(p.UID) {
		return nil
	}
	name, err := a.userDirectory.accountName(p.UID)
	a.resolveAccessIfRenamed(p, name)
	switch {
	case err != nil: // do not rely on the name at an earlier connection
		a.AdmittedPeerNameByUID.Delete(p.UID)
		return nil
	case name == "":
		return nil
	}
	a.AdmittedPeerNameByUID.Store(p.UID, name)
	if err := a.moveFormerOwnerJobs(ctx, p.UID, name); err != nil {
		return queue.Errorf(queue.CodeUnavailable, "the service cannot serve you yet: your uid %d belonged to another "+
			"account before, and the service could not take that account's jobs away from the uid (%v)", p.UID, err)
	}
	return nil
}

// moveFormerOwnerJobs moves the jobs of a uid's former owner to a negative uid. currentName is the uid's current name;
// if it equals the stored name, moveFormerOwnerJobs does nothing. It also completes a move that an earlier service has
// begun.
func (a *Admission) moveFormerOwnerJobs(ctx context.Context, uid int, currentName string) error {
	a.mu.Lock()
	former, unfinished := a.storedNameByUID[uid], a.uidsWithFormerOwnerJobs[uid]
	a.mu.Unlock()
	if former == currentName {
		former = "" // the owner has not changed, but an earlier service may have begun to move a former owner's jobs
	}
	if former == "" && !unfinished {
		return nil
	}
	if former != "" && a.HasOtherNodes() { // on another node, the uid may still belong to the former owner
		return fmt.Errorf("the uid belongs to %s on this node, but belonged to %s when jobs were enqueued; %w", currentName,
			former,
			errOwnerOnOtherNode)
	}
	for more := true; more; {
		var err error
		if more, err = a.store.DisownJobs(ctx, uid, former); err != nil {
			return err
		}
	}
	// Load now. After the former name is removed below, other peers with this uid are admitted without waiting.
	if err := a.LoadOwnerNames(ctx); err != nil || former == "" {
		return err
	}
	a.mu.Lock()
	if a.storedNameByUID[uid] == former {
		delete(a.storedNameByUID, uid)
	}
	a.mu.Unlock()
	a.Log.Warn("a uid now belongs to another account; only admins can see and change the jobs of the former account",
		"uid", uid, "was", former, "is", currentName)
	a.ResolveAccessSettings() // resolve [access] again, since it may name the former account
	return nil
}

// errOwnerOnOtherNode means that moveFormerOwnerJobs cannot move the jobs of a former owner now: on another node,
// this account may still exist.
var errOwnerOnOtherNode = errors.New("if the old account is right, give it this uid on this node; if the new one is " +
	"right, stop all other nodes until this node logs \"a uid now belongs to another account\"")

// RunFormerOwnerSeparation calls moveFormerOwnerJobs for the owners of all jobs until ctx ends. It does this at the
// start and after each RequestOwnerNameCheck. It also does it every ownerSeparationRetryDelay if the last call failed
// or other nodes can use the store.
func (a *Admission) RunFormerOwnerSeparation(ctx context.Context) {
	warned := map[int]bool{}
	for {
		var retryTimer <-chan time.Time
		if a.cluster != nil {
			retryTimer = time.After(ownerSeparationRetryDelay)
			a.UpdateUIDsWithoutAccount(ctx)
		}
		for _, uid := range a.ownerUIDs() {
			name, err := a.userDirectory.accountName(uid)
			if err != nil || name == "" || !uidMayBeReused(uid) {
				continue
			}
			if err := a.moveFormerOwnerJobs(ctx, uid, name); errors.Is(err, errOwnerOnOtherNode) {
				if retryTimer = time.After(ownerSeparationRetryDelay); !warned[uid] {
					warned[uid] = true
					a.Log.Warn("this node does not run the jobs of this uid", "uid", uid, "error", err)
				}
			} else if err != nil && ctx.Err() == nil {
				a.Log.Error("a uid belongs to a new account, which cannot use the service until the jobs of the former "+
					"account are separated from the uid; this failed, and the service tries again", "uid", uid, "error", err)
				retryTimer = time.After(ownerSeparationRetryDelay)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-a.ownerNameCheckSignal:
		case <-retryTimer:
		}
	}
}

// UpdateUIDsWithoutAccount stores the uids whose jobs this node does not claim. These are the uids whose users have no
// account on this node, but may have one on another node. See docs/decisions/0017.
func (a *Admission) UpdateUIDsWithoutAccount(ctx context.Context) {
	unknown := map[int]bool{}
	err := a.LoadOwnerNames(ctx) // load again, because users may have enqueued jobs on other nodes
	if err == nil && a.HasOtherNodes() {
		for _, uid := range a.ownerUIDs() {
			name := a.storedOwnerName(uid)
			if a.checkUserNotRenamed(uid, name) != nil || a.isJobAccountMissing(uid) {
				unknown[uid] = true
			}
		}
	}
	a.mu.Lock()
	unchanged := maps.Equal(a.uidsWithoutAccount, unknown)
	if err == nil {
		a.uidsWithoutAccount = unknown
	}
	a.mu.Unlock()
	if err == nil && !unchanged {
		err = a.SettingsLock.RunLocked(ctx, func() error { return a.StoreNodeRecord(ctx) })
	}
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("this node could not check which users have no account here; until a later check succeeds, it may "+
			"take jobs that it cannot start", "error", err)
	}
}

// isJobAccountMissing reports whether jobs of a uid run as an account that this node does not have.
func (o *Owners) isJobAccountMissing(uid int) bool {
	if !o.jobAccount.UsesPerJobAccount || !uidMayBeReused(uid) {
		return false
	}
	name, _ := o.lookUpUserName(uid, false)
	if name == "" {
		name, _ = o.lookUpUserName(uid, true)
	}
	return name == ""
}

// CheckJobAccountsUnchanged returns an error if a job must not start because a uid now belongs to another account:
// either the uid that enqueued the job, or the uid that it runs as. While other nodes are running, it also returns an
// error if this node does not have the account that the job runs as. Each look-up takes at most NameLookupTimeout.
func (o *Owners) CheckJobAccountsUnchanged(j *queue.Job) error {
	name := o.storedOwnerName(j.UID)
	if j.RunAsUID == nil {
		name = j.RunAsUser
	} else if err := o.checkUserNotRenamed(*j.RunAsUID, j.RunAsUser); err != nil {
		return o.addWrongNodeError(err)
	}
	err := o.checkUserNotRenamed(j.UID, name)
	if err != nil {
		o.RequestOwnerNameCheck()
	}
	if runs := o.jobAccount.JobUID(j); err == nil && o.HasOtherNodes() && o.isJobAccountMissing(runs) {
		err = fmt.Errorf("uid %d has no account on this node; create the account, or start a node that has it", runs)
		o.RequestOwnerNameCheck()
	}
	return o.addWrongNodeError(err)
}

// addWrongNodeError wraps an error of CheckJobAccountsUnchanged in worker.ErrJobNeedsOtherNode if other nodes are
// running. The job then waits, because another node may be able to start it.
func (o *Owners) addWrongNodeError(err error) error {
	if err == nil || !o.HasOtherNodes() {
		return err
	}
	return fmt.Errorf("%w: %w", worker.ErrJobNeedsOtherNode, err)
}

// checkUserNotRenamed returns an error if the system now returns another name than oldName for a uid. It returns nil if
// the system does not answer: the runner looks up the account of each job itself.
func (o *Owners) checkUserNotRenamed(uid int, oldName string) error {
	if err := o.checkUserNameMatches(uid, oldName); !errors.Is(err, errNameLookupTimedOut) {
		return err
	}
	return nil
}

// checkUserHasName returns an error if a uid belongs to an account with another name than expectedName. If the system
// does not answer, the uid counts as belonging to the account that it had at its last connection. If this account is
// unknown too, checkUserHasName returns errNameLookupTimedOut.
func (o *Owners) checkUserHasName(uid int, expectedName string) error {
	err := o.checkUserNameMatches(uid, expectedName)
	if admitted, known := o.AdmittedPeerNameByUID.Load(uid); errors.Is(err, errNameLookupTimedOut) && known {
		if err = nil; admitted != expectedName {
			err = errNotOwner
		}
	}
	return err
}

// errNameLookupTimedOut means that the system did not return the account of a uid in time.
var errNameLookupTimedOut = errors.New("the user database does not answer")

// checkUserNameMatches returns an error if the system returns another name than expectedName for a uid, or
// errNameLookupTimedOut if the system does not answer. It returns nil if the uid has no account.
func (o *Owners) checkUserNameMatches(uid int, expectedName string) error {
	if expectedName == "" || expectedName == strconv.Itoa(uid) || !uidMayBeReused(uid) {
		return nil
	}
	name, err := o.lookUpUserName(uid, false)
	if name != expectedName {
		name, err = o.lookUpUserName(uid, true) // the name may have changed since it was cached
	}
	switch {
	case err != nil:
		return errNameLookupTimedOut
	case name != "" && name != expectedName:
		return fmt.Errorf("uid %d belonged to %s when the job was enqueued, but belongs to %s now", uid, expectedName, name)
	}
	return nil
}

// lookUpUserName returns the name of a uid, or "" if the uid has no account. It uses a cached name that is not older
// than cachedNameLifetime, unless bypassCache is set. It returns an error if the system does not answer within
// NameLookupTimeout.
func (o *Owners) lookUpUserName(uid int, bypassCache bool) (string, error) {
	o.mu.Lock()
	n := o.NameLookupByUID[uid]
	if n == nil || n.isExpired(bypassCache) {
		if len(o.NameLookupByUID) >= maxCachedNameLookups || o.NameLookupByUID == nil {
			o.NameLookupByUID = map[int]*NameLookup{}
		}
		n = &NameLookup{Done: make(chan struct{})}
		o.NameLookupByUID[uid] = n
		go func() {
			// This goroutine ends when the directory service responds, which takes a few seconds at most.
			n.AccountName, n.Err = o.userDirectory.accountName(uid)
			n.DoneAt = time.Now()
			close(n.Done)
		}()
	}
	slow := n.callerTimedOut
	o.mu.Unlock()
	if !slow {
		select {
		case <-n.Done:
			return n.AccountName, n.Err
		case <-time.After(NameLookupTimeout):
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n.callerTimedOut = true
	return "", errNameLookupTimedOut
}

// isExpired reports whether the result of the look-up must not be used again. It returns false while the
// look-up is in progress. If bypassCache is set, no result may be used again.
func (n *NameLookup) isExpired(bypassCache bool) bool {
	select {
	case <-n.Done:
		return bypassCache || time.Since(n.DoneAt) >= cachedNameLifetime
	default:
		return false
	}
}

// FormerOwnerUID returns the negative uid of the former owner with the given name. If several former owners have this
// name, it returns the uid of the newest one.
func (o *Owners) FormerOwnerUID(name string) (uid int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, owner := range o.formerOwnerNameByUID {
		// Each new former owner gets a lower uid than the former owners before, so the newest has the lowest uid.
		if owner == name && id < uid {
			uid, ok = id, true
		}
	}
	return uid, ok
}

// UserName returns the name of a uid. If the uid has no name, it returns the uid as text.
func (o *Owners) UserName(uid int) string {
	if name, ok := o.AdmittedPeerNameByUID.Load(uid); ok {
		return name.(string)
	}
	if name := o.storedOwnerName(uid); name != "" || uid < 0 {
		return name
	}
	name := o.userDirectory.UserName(uid)
	if name != strconv.Itoa(uid) { // the uid may get a name soon, so do not cache the number
		o.AdmittedPeerNameByUID.Store(uid, name)
	}
	return name
}

// CachedUserName returns the cached or stored name of a uid without asking the system, or else the uid as
// text.
func (o *Owners) CachedUserName(uid int) string {
	if name, ok := o.AdmittedPeerNameByUID.Load(uid); ok {
		return name.(string)
	}
	return cmp.Or(o.storedOwnerName(uid), fmt.Sprint(uid))
}

// PresentUserName returns the name of the account that has a uid now, or "" if it is unknown. Unlike UserName, it never
// returns the name of a former account.
func (o *Owners) PresentUserName(uid int) string {
	if name, ok := o.AdmittedPeerNameByUID.Load(uid); ok {
		return name.(string)
	}
	if name := o.userDirectory.UserName(uid); name != strconv.Itoa(uid) {
		return name
	}
	return ""
}

// UserNameOrEmpty returns the name of a uid, or "" if it is unknown.
func (o *Owners) UserNameOrEmpty(uid int) string {
	if name := o.UserName(uid); name != strconv.Itoa(uid) {
		return name
	}
	return ""
}

// HasOtherNodes reports whether other nodes that share the queue are running.
func (o *Owners) HasOtherNodes() bool { return o.cluster != nil && o.cluster.HasOtherActiveNodes() }
