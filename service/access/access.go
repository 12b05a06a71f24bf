// Package access decides what a peer (a connected client) may see and do, and as which user jobs run. All
// decisions are made here: no handler compares uids itself.
//
// Start with Rights, which gives a peer its right, and with Guard, which applies rights to jobs. Owners keeps the
// jobs of a deleted account from a new account with the same uid.
package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/service/settings"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Rights computes the right of a peer from the settings section [access].
type Rights struct {
	Paths         config.Paths
	UserDirectory *UserDirectory
	Settings      *settings.Keeper

	resolvedAccess atomic.Pointer[resolvedAccess]
}

// Guard decides which jobs a peer may see and change, and as which users jobs run. It writes actions to the
// audit log.
type Guard struct {
	*Owners
	*Rights
	RunnerLocation      runner.RunnersLocation
	RunnerAccountPolicy *launcher.AccountAuthorizer // decides as which accounts runners that run as root may run jobs
}

// resolvedAccess holds the settings section [access] with ids instead of names. Each id is the one that the account had
// when the settings were read.
type resolvedAccess struct {
	control.Access
	// userNameByUID and groupNameByGID hold the names of the ids in Access. An id that the section gives as a number
	// has no name.
	userNameByUID   map[int]string
	groupNameByGID  map[int]string
	unresolvedNames []string // names in [access] that this machine does not know
}

// ResolveAccessSettings looks up the user and group names in the settings section [access]. It holds no lock, because a
// network directory may respond slowly. If the settings change during the look-up, it looks up the new names.
func (r *Rights) ResolveAccessSettings() {
	for {
		old, c := r.resolvedAccess.Load(), r.Settings.CurrentConfig()
		if r.resolvedAccess.CompareAndSwap(old, resolveAccessNames(r.UserDirectory, &c.Settings)) &&
			r.Settings.CurrentConfig() == c {
			return
		}
	}
}

// resolveAccessNames looks up the user and group names of the section [access].
func resolveAccessNames(d *UserDirectory, c *config.Settings) *resolvedAccess {
	a := &resolvedAccess{Access: control.Access{RightsByUID: map[int]control.Right{},
		RightsByGID: map[int]control.Right{}},
		userNameByUID: map[int]string{}, groupNameByGID: map[int]string{}}
	users := idResolver{directory: d, lookUpID: d.UserID, nameByID: a.userNameByUID,
		lookUpName: func(uid int) string { name, _ := d.accountName(uid); return name }}
	groups := idResolver{directory: d, lookUpID: d.GroupID, lookUpName: d.groupNameOrEmpty, nameByID: a.groupNameByGID}
	for _, right := range control.GrantableRights() { // the strongest right comes last and replaces weaker ones
		for _, name := range c.AccountsWithRight(string(right)) {
			rights, resolver := a.RightsByUID, &users
			group, isGroup := strings.CutPrefix(name, "@")
			if isGroup {
				rights, resolver = a.RightsByGID, &groups
			}
			if id, ok := resolver.resolve(group); ok {
				rights[id] = right
			} else if !slices.Contains(a.unresolvedNames, name) {
				a.unresolvedNames = append(a.unresolvedNames, name)
			}
		}
	}
	return a
}

// idResolver finds the ids of users or of groups.
type idResolver struct {
	directory  *UserDirectory
	lookUpID   func(nameOrID string) (id int, ok bool)
	lookUpName func(id int) string // returns "" if the id has no name, or the directory does not answer
	nameByID   map[int]string      // names of the ids that were found by name
}

// resolve returns the id of a user or group. It records the name of the id, unless the user or group is given as an id.
func (r *idResolver) resolve(nameOrID string) (id int, ok bool) {
	id, ok = r.lookUpID(nameOrID)
	if !ok || nameOrID == strconv.Itoa(id) {
		return id, ok
	}
	name := r.lookUpName(id)
	if name != "" && name != nameOrID {
		// Either the user or group has several names, or the cached id is outdated and now belongs to another one.
		r.directory.DropCache()
		if id, ok = r.lookUpID(nameOrID); !ok {
			return 0, false
		}
		name = r.lookUpName(id)
	}
	r.nameByID[id] = cmp.Or(name, nameOrID)
	return id, true
}

// resolveAccessIfRenamed resolves [access] again if the uid or a group of a peer has a right, but now another name than
// when it got the right. The account or group that got the right may have been deleted, and the id may belong to a new
// one. accountName is the name of the peer's account, or "" if it is unknown.
func (r *Rights) resolveAccessIfRenamed(p *control.Peer, accountName string) {
	resolved := r.resolvedAccess.Load()
	isRenamed := func(oldName, name string) bool { return oldName != "" && name != "" && oldName != name }
	if isRenamed(resolved.userNameByUID[p.UID], accountName) ||
		slices.ContainsFunc(append(slices.Clip(p.Groups), p.GID), func(gid int) bool {
			oldName := resolved.groupNameByGID[gid]
			return oldName != "" && isRenamed(oldName, r.UserDirectory.groupNameOrEmpty(gid))
		}) {
		r.ResolveAccessSettings()
	}
}

// CurrentAccess returns the rights that the settings section [access] gives to users and groups.
func (r *Rights) CurrentAccess() *control.Access { return &r.resolvedAccess.Load().Access }

// UnknownAccessNamesMessage returns a message about the names in the settings section [access] that this machine
// does not know, or "" if it knows all of them.
func (r *Rights) UnknownAccessNamesMessage() string {
	if list := r.resolvedAccess.Load().unresolvedNames; len(list) > 0 {
		return fmt.Sprintf("the settings section [access] names unknown users or groups: %s", strings.Join(list, ", "))
	}
	return ""
}

// CurrentRight implements control.Authorizer: it returns a peer's right. Root and the service's own user have all
// rights.
func (r *Rights) CurrentRight(p *control.Peer) control.Right {
	switch c := r.Settings.CurrentConfig(); {
	case p.UID == AnonymousUID && c.AnonymousWebRight == "read", p.UID == MetricsScraperUID &&
		c.AnonymousWebMetrics == "true":
		return control.RightRead
	case p.UID == AnonymousUID, p.UID == MetricsScraperUID:
		return control.RightNone
	}
	if p.IsRoot() || p.UID == accounts.CurrentUserID() {
		return control.RightAdmin
	}
	return r.resolvedAccess.Load().StrongestRightOf(p)
}

// PeerName returns the name of a peer's user.
func (r *Rights) PeerName(uid int) string {
	if uid == AnonymousUID || uid == MetricsScraperUID {
		return "anybody"
	}
	return r.UserDirectory.UserName(uid)
}

// MissingRightError implements control.Authorizer: it returns the error for a peer that lacks the right for an
// action. The error names the action and the right.
func (r *Rights) MissingRightError(p *control.Peer, action string, neededRight control.Right) error {
	you := r.PeerName(p.UID)
	if !p.Right.Covers(control.RightRead) {
		return queue.Errorf(queue.CodeDenied, "you (%s) have no rights on this service, which belongs to %s; %s", you,
			r.UserDirectory.UserName(accounts.CurrentUserID()), r.AdviceForMissingRight(control.RightSubmit, you))
	}
	return queue.Errorf(queue.CodeDenied, `%s needs the right "%s", but you (%s) have "%s"; %s`,
		action, neededRight, you, p.Right, r.AdviceForMissingRight(neededRight, ""))
}

// AdviceForMissingRight returns advice on how a user can get a right. userName is the user's name. It is "" if the user
// already has some weaker right.
func (r *Rights) AdviceForMissingRight(neededRight control.Right, userName string) string {
	c := r.Settings.CurrentConfig()
	grant := "ask an admin to grant it in the section [access] of " + r.Paths.SettingsFile
	if userName != "" {
		grant = "ask an admin to grant you a right in the section [access] of " + r.Paths.SettingsFile
	}
	for _, right := range control.GrantableRights() {
		if !right.Covers(neededRight) {
			continue
		}
		for _, n := range c.AccountsWithRight(string(right)) {
			group, isGroup := strings.CutPrefix(n, "@")
			switch {
			case isGroup && userName != "":
				return fmt.Sprintf(`members of the group %s have the right "%s"; join this group (`+joinGroupCommandFormat+
					"), or %s",
					group, right, group, userName, grant)
			case isGroup:
				return fmt.Sprintf(`join the group %s, which has the right "%s", or %s`, group, right, grant)
			}
		}
	}
	return grant
}

// CheckMayActOnObject returns an error if the peer may not call a method for a job or a schedule, for example because
// it belongs to another user. objectKind is "job" or "schedule", and occurs in the error message. For a schedule, j is
// a job with the same owner as the schedule's jobs.
func (g *Guard) CheckMayActOnObject(p *control.Peer, method, objectKind string, j *queue.Job) error {
	notOwner := g.checkPeerOwnsJob(p, j)
	needs := control.RequiredRight(method, notOwner == nil)
	switch {
	case j.UID < 0 && !p.Right.Covers(control.RightAdmin):
		return g.MissingRightError(p, fmt.Sprintf("%s on %s %s, whose owner's account no longer exists,",
			method, objectKind, j.ID), control.RightAdmin)
	case p.Right.Covers(needs):
		return nil
	case notOwner == nil:
		return g.MissingRightError(p, method, needs)
	case errors.Is(notOwner, errNameLookupTimedOut):
		return g.MissingRightError(p, fmt.Sprintf("%s on %s %s, whose owner is unknown while the user database does "+
			"not answer,", method, objectKind, j.ID), needs)
	}
	return g.MissingRightError(p, fmt.Sprintf("%s on another user's %s (%s)", method, objectKind, j.ID), needs)
}

// JobVisibilityFor returns how much of a job a peer may see. If the job belongs to a former account, whose uid
// now belongs to another account, peers that are not admins see only VisibleOutline.
func (g *Guard) JobVisibilityFor(p *control.Peer, j *queue.Job) Visibility {
	if j.UID < 0 && !p.Right.Covers(control.RightAdmin) {
		return VisibleOutline
	}
	return VisibilityFor(p.Right, g.PeerOwnsJob(p, j))
}

// HidesJob reports whether a peer must not learn that a job exists. Only jobs of hooks that the settings define are
// hidden: only operators and the user that the job runs for may see such a job.
func (g *Guard) HidesJob(p *control.Peer, j *queue.Job) bool {
	return j.RestrictedToUID() != nil && !p.Right.Covers(control.RightOperate) && !g.PeerOwnsJob(p, j)
}

// MaySeeJobExists reports whether a peer may learn that a job exists. If visibleOnlyToUID is nil, all users may see the
// job. Otherwise only the user with this uid, and users with the right "operate", may see it.
func MaySeeJobExists(p *control.Peer, visibleOnlyToUID *int) bool {
	return visibleOnlyToUID == nil || *visibleOnlyToUID == p.UID || p.Right.Covers(control.RightOperate)
}

// GetVisibleJob reads a job without its large fields. If the peer must not learn that the job exists, the error
// is the same as for a missing job.
func (g *Guard) GetVisibleJob(ctx context.Context, p *control.Peer, id string) (queue.Job, error) {
	j, err := g.store.GetJob(ctx, id)
	if err == nil && g.HidesJob(p, &j) {
		return queue.Job{}, queue.JobNotFoundError(id)
	}
	return j, err
}

// PeerOwnsJob reports whether a job belongs to a peer. It compares uids and user names, because the uid of a running
// job may now belong to another account. The fields RunAsUser and RunAsUID of j must be set as in the store.
func (g *Guard) PeerOwnsJob(p *control.Peer, j *queue.Job) bool {
	return g.checkPeerOwnsJob(p, j) == nil
}

// errNotOwner means that a job does not belong to a peer.
var errNotOwner = errors.New("the job belongs to another account")

// checkPeerOwnsJob returns nil if a job belongs to a peer, and otherwise errNotOwner or errNameLookupTimedOut.
func (g *Guard) checkPeerOwnsJob(p *control.Peer, j *queue.Job) error {
	name := j.RunAsUser
	switch {
	case j.UID != p.UID:
		return errNotOwner
	case j.RunAsUID != nil && *j.RunAsUID != j.UID: // the field RunAsUser does not name the job's owner
		if g.MayHaveFormerOwnerJobs(j.UID) {
			return errNotOwner
		}
		name = g.storedOwnerName(j.UID)
	}
	return g.checkUserHasName(j.UID, name)
}

// OwnerUIDFilter returns the peer's uid if the peer may use a method only on the peer's own jobs. It returns
// nil if the peer may use the method on all jobs.
func OwnerUIDFilter(p *control.Peer, method string) *int {
	if p.Right.Covers(control.RequiredRight(method, false)) {
		return nil
	}
	return &p.UID
}

// RecordAudit writes an action to the audit log. Handlers call it before an action for which the service records no
// other event. j is the job that the action is about; nil means that the action is not about a single job. See
// docs/decisions/0074.
func (g *Guard) RecordAudit(ctx context.Context, verb, target string, j *queue.Job) error {
	p := control.PeerFrom(ctx)
	a := store.AuditRecord{UID: p.UID, UserName: g.PresentUserName(p.UID), PID: p.PID, Verb: verb, Target: target}
	if j != nil {
		a.JobSeq, a.JobID = j.Seq, j.ID
	}
	return g.store.RecordAudit(ctx, a)
}

// JobUser is the account that a job runs as.
type JobUser struct {
	UID  int
	Name string
}

// ResolveJobUser returns the account with the given name. It returns an error if the peer may not run jobs as
// this user.
func (g *Guard) ResolveJobUser(p *control.Peer, name string) (JobUser, error) {
	uid, ok := g.UserDirectory.UserID(name)
	user := JobUser{UID: uid, Name: g.UserDirectory.UserName(uid)}
	// UserDirectory.UserID accepts any number as a uid. If the uid has no name, the account is known to exist only if its
	// uid is that of the peer or of the service.
	unnamed := user.Name == strconv.Itoa(uid)
	if !ok || unnamed && uid != p.UID && uid != accounts.CurrentUserID() {
		return JobUser{}, queue.InvalidFieldError("user", "there is no user %q on this machine", queue.ClipForMessage(name))
	}
	return user, g.checkMayRunAs(p, user)
}

// JobUserResolver returns a function that works like ResolveJobUser but looks up each name only once. A look-up
// takes longer than the other checks of a job, and a request may enqueue many jobs for one user.
func (g *Guard) JobUserResolver(p *control.Peer) func(name string) (JobUser, error) {
	users := map[string]JobUser{}
	return func(name string) (JobUser, error) {
		user, known := users[name]
		if known {
			return user, nil
		}
		user, err := g.ResolveJobUser(p, name)
		if err == nil {
			users[name] = user
		}
		return user, err
	}
}

// checkMayRunAs returns an error if jobs cannot run as a user, or if the peer may not run jobs as that user.
func (g *Guard) checkMayRunAs(p *control.Peer, user JobUser) error {
	needs := control.RequiredRight("enqueue", false)
	switch {
	case user.UID == g.jobAccount.JobUID(&queue.Job{UID: p.UID}), g.jobAccount.UsesPerJobAccount &&
		p.Right.Covers(needs):
		return nil
	case g.jobAccount.UsesPerJobAccount:
		return g.MissingRightError(p, "a job that runs as another user ("+user.Name+")", needs)
	}
	return &queue.Error{Code: queue.CodeDenied, Field: "user",
		Message: fmt.Sprintf("jobs of this service run as %[2]s and cannot run as %[1]s; "+cannotRunAsAdvice,
			user.Name, g.JobUserNameOfPeer(p), g.Paths.SettingsFile)}
}

// JobUserNameOfPeer returns the name of the user that the peer's jobs run as.
func (g *Guard) JobUserNameOfPeer(p *control.Peer) string {
	if uid := g.jobAccount.JobUID(&queue.Job{UID: p.UID}); uid != g.jobAccount.UID {
		return g.UserDirectory.UserName(uid)
	}
	return g.jobAccount.UserName
}

// JobExecutionFields lists the fields of a job that define the executed command, its input and its environment.
var JobExecutionFields = []string{"command", "argv", "shell", "env", "env_secret", "mask_secrets", "cwd", "umask",
	"stdin",
	"stdin_file", "no_new_privileges", "on_completed", "on_failed", "on_dead", "on_ended"}

// editScope says whether an edit changes parts of a job for which the right to edit the job is not sufficient.
type editScope struct {
	changesExecution bool // the edit changes what the job executes
	// the edit contains hiddenValuePlaceholder, the text that is shown instead of hidden values, as a new value
	containsHiddenPlaceholder bool
	changesUser               bool     // the edit changes the user that the job runs as
	newUser                   *JobUser // the new user; nil means the service's default
}

// ParseEditScope parses the merge patch of an edit, and returns which of the changed parts need a further check. It
// returns an error if the peer changes the user that the job runs as, but is not an admin.
func (g *Guard) ParseEditScope(p *control.Peer, patch json.RawMessage) (e editScope, err error) {
	err = queue.EachMember(patch, func(name string, value json.RawMessage) error {
		e.changesExecution = e.changesExecution || slices.Contains(JobExecutionFields, name)
		switch name {
		case "env", "env_secret":
			var env map[string]string
			// Ignore errors in the value here: a later validation reports them.
			if json.Unmarshal(value, &env) == nil && slices.Contains(slices.Collect(maps.Values(env)), hiddenValuePlaceholder) {
				e.containsHiddenPlaceholder = true // storing hiddenValuePlaceholder would overwrite the true value
			}
		case "user":
			if !p.Right.Covers(control.RightAdmin) {
				return g.MissingRightError(p, "changing the user that a job runs as", control.RightAdmin)
			}
			e.changesUser = true
			var name *string
			if err := json.Unmarshal(value, &name); err != nil {
				return queue.InvalidFieldError("user", "must be the name of a user, or null")
			}
			if name == nil {
				return nil
			}
			user, err := g.ResolveJobUser(p, *name)
			if err == nil {
				err = g.CheckRunnerMayRunAs(user.UID)
			}
			e.newUser = &user
			return err
		}
		return nil
	})
	return e, err
}

// CheckMayEdit returns an error if the edit e would let a peer that is not an admin run something as another user. Job
// j runs as the user that an admin has chosen or, without a choice, as its submitter. The check is made only if the
// runners run as root, because only such runners can run jobs as other users. It is made even while the setting run_as
// makes all jobs run as one account, because run_as may change before the job starts. CheckMayEdit also rejects an edit
// that would overwrite values that the peer cannot see. See docs/decisions/0075.
func (g *Guard) CheckMayEdit(p *control.Peer, e *editScope, j *queue.Job) error {
	each := worker.Account{UsesPerJobAccount: true}
	switch {
	case e.containsHiddenPlaceholder && j.UID != p.UID:
		return queue.InvalidFieldError("env", "contains \"***\" instead of a hidden value; leave out the variables "+
			"that you do not change")
	case e.changesExecution && g.RunnerLocation.HasExternalRunnersDir() && each.JobUID(j) != p.UID &&
		!p.Right.Covers(control.RightAdmin):
		return g.MissingRightError(p, "changing a job that runs as another user", control.RightAdmin)
	}
	return nil
}

// ApplyUserChange changes the user that a job runs as, if the edit changes that user.
func (e *editScope) ApplyUserChange(j *queue.Job) {
	switch {
	case !e.changesUser:
	case e.newUser == nil:
		j.RunAsUID, j.RunAsUser = nil, ""
	default:
		j.RunAsUID, j.RunAsUser = &e.newUser.UID, e.newUser.Name
	}
}

// UserDirectory looks up accounts in the system's users and groups.
type UserDirectory struct{ accounts.Resolver }

// AnonymousUID is the uid of a client of the web page that has not signed in. MetricsScraperUID is the uid of a client
// that reads only the metrics. No account has one of these uids.
const (
	AnonymousUID      = math.MinInt32 // every JSON parser can represent this number exactly
	MetricsScraperUID = math.MinInt32 + 1
)
