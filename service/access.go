package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// rights decides which rights a peer has, as the settings section [access] defines.
type rights struct {
	places    config.Places
	directory *directory
	settings  *keeper

	access atomic.Pointer[access]
}

// guard decides which jobs a peer may see and change, and records actions in the audit log.
type guard struct {
	store  store.Store
	owners *owners
	rights *rights
}

// Users tells peers who they are.
type Users struct {
	places    config.Places
	store     store.Store
	directory *directory
	quota     *quota
	rights    *rights
	runAs     *runAs
	settings  *keeper
}

// access holds the settings section [access], with the ids of the users and groups on this machine instead
// of their names. The names are looked up when the settings are read.
type access struct {
	control.Access
	unknown []string // names in [access] that no user or group of this machine has
}

// resolveAccess resolves the names in the current settings. A network directory may answer slowly, so
// resolveAccess holds no lock. If the settings change in the meantime, it starts over.
func (r *rights) resolveAccess() {
	for {
		old, c := r.access.Load(), r.settings.config.Load()
		if r.access.CompareAndSwap(old, resolve(&r.directory.Directory, &c.Settings)) && r.settings.config.Load() == c {
			return
		}
	}
}

// resolve looks up the names of [access].
func resolve(d *accounts.Directory, c *config.Settings) *access {
	a := &access{Access: control.Access{Users: map[int]control.Right{}, Groups: map[int]control.Right{}}}
	for _, right := range control.Rights() { // the strongest right comes last and replaces weaker ones
		for _, name := range c.Access(string(right)) {
			ids, look := a.Users, d.UserID
			group, isGroup := strings.CutPrefix(name, "@")
			if isGroup {
				ids, look = a.Groups, d.GroupID
			}
			if id, ok := look(group); ok {
				ids[id] = right
			} else if !slices.Contains(a.unknown, name) {
				a.unknown = append(a.unknown, name)
			}
		}
	}
	return a
}

// unknownNames returns a message that lists the names of [access] that this machine does not know, or "" if
// it knows all.
func (r *rights) unknownNames() string {
	if list := r.access.Load().unknown; len(list) > 0 {
		return fmt.Sprintf("the settings section [access] names unknown users or groups: %s", strings.Join(list, ", "))
	}
	return ""
}

// Right implements control.Authorizer. Root and the service's own user have all rights.
func (r *rights) Right(p *control.Peer) control.Right {
	switch c := r.settings.config.Load(); {
	case p.UID == anonymousUID && c.WebAnonymous == "read", p.UID == scraperUID && c.WebMetrics == "true":
		return control.Read
	case p.UID == anonymousUID, p.UID == scraperUID:
		return control.None
	}
	if p.Root() || p.UID == accounts.Self() {
		return control.Admin
	}
	return r.access.Load().Of(p)
}

// peerName returns the name of a peer's user.
func (r *rights) peerName(uid int) string {
	if uid == anonymousUID || uid == scraperUID {
		return "anybody"
	}
	return r.directory.UserName(uid)
}

// Refuse implements control.Authorizer.
func (r *rights) Refuse(p *control.Peer, what string, needs control.Right) error {
	you := r.peerName(p.UID)
	if !p.Right.Covers(control.Read) {
		return queue.Errorf(queue.CodeDenied, "you (%s) have no rights on this service, which belongs to %s; %s", you, r.directory.UserName(accounts.Self()), r.howToGetRight(control.Submit, you))
	}
	return queue.Errorf(queue.CodeDenied, `%s needs the right "%s", but you (%s) have "%s"; %s`, what, needs, you, p.Right, r.howToGetRight(needs, ""))
}

// howToGetRight returns advice on how a user can get a right. name is the user's name if the user has no
// right at all; it is "" if the user has some right.
func (r *rights) howToGetRight(needs control.Right, name string) string {
	c := r.settings.config.Load()
	grant := "ask an admin to grant it in the section [access] of " + r.places.File
	if name != "" {
		grant = "ask an admin to grant you a right in the section [access] of " + r.places.File
	}
	for _, right := range control.Rights() {
		if !right.Covers(needs) {
			continue
		}
		for _, n := range c.Access(string(right)) {
			group, isGroup := strings.CutPrefix(n, "@")
			switch {
			case isGroup && name != "":
				return fmt.Sprintf(`members of the group %s have the right "%s"; join this group (`+joinGroup+"), or %s", group, right, group, name, grant)
			case isGroup:
				return fmt.Sprintf(`join the group %s, which has the right "%s", or %s`, group, right, grant)
			}
		}
	}
	return grant
}

// mayAct returns an error if the peer may not use a method on a job, for example because the job belongs to
// another user.
func (g *guard) mayAct(p *control.Peer, method string, j *queue.Job) error {
	return g.mayActOn(p, method, "job", j)
}

// mayActOn is mayAct for a job or a schedule; what says which of them. For a schedule, j represents the
// jobs that it creates.
func (g *guard) mayActOn(p *control.Peer, method, what string, j *queue.Job) error {
	isOwner := g.isOwner(p, j)
	needs := control.Needs(method, isOwner)
	switch {
	case j.UID < 0 && !p.Right.Covers(control.Admin):
		return g.rights.Refuse(p, fmt.Sprintf("%s on %s %s, whose owner's account no longer exists,", method, what, j.ID), control.Admin)
	case p.Right.Covers(needs):
		return nil
	}
	if isOwner {
		return g.rights.Refuse(p, method, needs)
	}
	return g.rights.Refuse(p, fmt.Sprintf("%s on another user's %s (%s)", method, what, j.ID), needs)
}

// visibilityFor returns how much of a job a peer may see. Only admins see the jobs of former accounts.
func (g *guard) visibilityFor(p *control.Peer, j *queue.Job) control.Visibility {
	if j.UID < 0 && !p.Right.Covers(control.Admin) {
		return control.Outline
	}
	return control.Sees(p.Right, g.isOwner(p, j))
}

// hides reports whether a job's existence is hidden from a peer. A hook that the settings define is visible
// only to operators and to the user that it runs for.
func (g *guard) hides(p *control.Peer, j *queue.Job) bool {
	return j.Private() != nil && !p.Right.Covers(control.Operate) && !g.isOwner(p, j)
}

// mayRead reports whether a peer may know of a job. The parameter private is the uid of the only user who
// may see the job, apart from operators. If it is nil, all users may see the job.
func mayRead(p *control.Peer, private *int) bool {
	return private == nil || *private == p.UID || p.Right.Covers(control.Operate)
}

// get reads a job without its large fields. It returns a not-found error if the job is hidden from the peer.
func (g *guard) get(ctx context.Context, p *control.Peer, id string) (queue.Job, error) {
	j, err := g.store.Get(ctx, id)
	if err == nil && g.hides(p, &j) {
		return queue.Job{}, errNoJob(id)
	}
	return j, err
}

// errNoJob returns the same error as the store, so that a hidden job looks like a missing one.
func errNoJob(id string) error {
	return queue.NoJob(id)
}

// isOwner reports whether a job belongs to a peer. It also compares names, because a running job keeps its
// uid even if another account has that uid now.
func (g *guard) isOwner(p *control.Peer, j *queue.Job) bool {
	return j.UID == p.UID && (j.AsUID != nil || g.owners.checkRenamed(j.UID, j.User) == nil)
}

// onlyOwnUID returns the peer's uid if the peer may use a method only on own jobs. It returns nil if the
// peer may use the method on all jobs.
func onlyOwnUID(p *control.Peer, method string) *int {
	if p.Right.Covers(control.Needs(method, false)) {
		return nil
	}
	return &p.UID
}

// audit records an action for which no other event exists. The caller calls it before it executes the
// action. j is the job that the action concerns; nil if it concerns no single job. See docs/decisions/0074.
func (g *guard) audit(ctx context.Context, verb, target string, j *queue.Job) error {
	p := control.PeerFrom(ctx)
	a := store.Audit{UID: p.UID, PID: p.PID, Verb: verb, Target: target}
	if j != nil {
		a.Job, a.ID = j.Seq, j.ID
	}
	return g.store.Audit(ctx, a)
}

// userResolver resolves the names of the users that the jobs of one request run as.
type userResolver struct {
	r        *runAs
	peer     *control.Peer
	resolved map[string]jobUser
}

// jobUser is the account that a job runs as.
type jobUser struct {
	uid  int
	name string
}

// resolve returns the account of a name, if the peer may run jobs as that user.
func (a *userResolver) resolve(name string) (jobUser, error) {
	if user, known := a.resolved[name]; known {
		return user, nil
	}
	uid, ok := a.r.directory.UserID(name)
	user := jobUser{uid: uid, name: a.r.directory.UserName(uid)}
	// The system knows no name for this uid. Accept it only if its account certainly exists, which holds
	// for the peer and the service.
	unnamed := user.name == strconv.Itoa(uid)
	if !ok || unnamed && uid != a.peer.UID && uid != accounts.Self() {
		return jobUser{}, queue.Invalid("user", "there is no user %q on this machine", queue.Clip(name))
	}
	if err := a.r.mayRunAs(a.peer, user); err != nil {
		return jobUser{}, err
	}
	if a.resolved == nil {
		a.resolved = map[string]jobUser{}
	}
	a.resolved[name] = user
	return user, nil
}

// mayRunAs returns an error if jobs cannot run as a user, or if the peer may not run jobs as that user.
func (r *runAs) mayRunAs(p *control.Peer, user jobUser) error {
	needs := control.Needs("enqueue", false)
	switch {
	case user.uid == r.account.RunsAs(&queue.Job{UID: p.UID}), r.account.Each && p.Right.Covers(needs):
		return nil
	case r.account.Each:
		return r.rights.Refuse(p, "a job that runs as another user ("+user.name+")", needs)
	}
	return &queue.Error{Code: queue.CodeDenied, Field: "user", Message: fmt.Sprintf("jobs of this service run as %[2]s and cannot run as %[1]s; "+runAsAdvice,
		user.name, r.jobsRunAs(p), r.places.File)}
}

// jobsRunAs returns the name of the user that the peer's jobs run as.
func (r *runAs) jobsRunAs(p *control.Peer) string {
	if uid := r.account.RunsAs(&queue.Job{UID: p.UID}); uid != r.account.UID {
		return r.directory.UserName(uid)
	}
	return r.account.User
}

// executionFields lists the fields that define what a job executes, and its input and environment.
var executionFields = []string{"command", "argv", "shell", "env", "env_secret", "mask_secrets", "cwd", "umask", "stdin", "stdin_file", "no_new_privileges", "on_completed", "on_failed", "on_dead", "on_ended"}

// editScope describes the parts of an edit that need more than ownership of the job.
type editScope struct {
	changesExecution bool     // the edit changes what the job executes
	hasPlaceholder   bool     // a value is the placeholder of a hidden value
	changesUser      bool     // the edit changes the user that the job runs as
	user             *jobUser // the new user; nil means the service's default
}

// editScope checks a merge patch. Only admins may change the user that a job runs as.
func (r *runAs) editScope(p *control.Peer, set json.RawMessage) (e editScope, err error) {
	err = queue.Members(set, func(name string, value json.RawMessage) error {
		e.changesExecution = e.changesExecution || slices.Contains(executionFields, name)
		switch name {
		case "env", "env_secret":
			var env map[string]string
			// Ignore errors in the value here, since the later validation reports them.
			e.hasPlaceholder = e.hasPlaceholder || json.Unmarshal(value, &env) == nil && control.HoldsHidden(env)
		case "user":
			if !p.Right.Covers(control.Admin) {
				return r.rights.Refuse(p, "changing the user that a job runs as", control.Admin)
			}
			e.changesUser = true
			var name *string
			if err := json.Unmarshal(value, &name); err != nil {
				return queue.Invalid("user", "must be the name of a user, or null")
			}
			if name == nil {
				return nil
			}
			user, err := (&userResolver{r: r, peer: p}).resolve(*name)
			if err == nil {
				err = r.mayRun(user.uid)
			}
			e.user = &user
			return err
		}
		return nil
	})
	return e, err
}

// mayEdit returns an error for an edit that would let the peer act as another user. That user is the job's
// submitter, or a user that an admin has chosen for the job. With root's runners, both are checked, because
// the service could apply another run_as at its next start. It also rejects edits that would overwrite
// values that the peer cannot see. See docs/decisions/0075.
func (r *runAs) mayEdit(p *control.Peer, e *editScope, j *queue.Job) error {
	each := worker.Account{Each: true}
	switch {
	case e.hasPlaceholder && j.UID != p.UID:
		return queue.Invalid("env", "contains \"***\" instead of a hidden value; leave out the variables that you do not change")
	case e.changesExecution && r.home.Foreign() && each.RunsAs(j) != p.UID && !p.Right.Covers(control.Admin):
		return r.rights.Refuse(p, "changing a job that runs as another user", control.Admin)
	}
	return nil
}

// apply changes the user that a job runs as, if the edit requests that.
func (e *editScope) apply(j *queue.Job) {
	switch {
	case !e.changesUser:
	case e.user == nil:
		j.AsUID, j.User = nil, ""
	default:
		j.AsUID, j.User = &e.user.uid, e.user.name
	}
}

// maxGroups is the maximum number of a peer's groups that whoami lists.
const maxGroups = 1000

// Whoami implements control.API.
func (h *Users) Whoami(ctx context.Context, _ control.Nothing) (w control.Whoami, err error) {
	p := control.PeerFrom(ctx)
	w = control.Whoami{
		UID: p.UID, User: h.rights.peerName(p.UID), GID: p.GID, Group: h.directory.GroupName(p.GID), Groups: []control.GroupID{}, PID: p.PID,
		Right: p.Right, Rights: p.Right.Included(), RunAs: h.settings.config.Load().RunAs,
		Service: string(h.places.Kind()), Socket: h.places.Socket,
	}
	for _, g := range p.Groups[:min(len(p.Groups), maxGroups)] {
		w.Groups = append(w.Groups, control.GroupID{GID: g, Name: h.directory.GroupName(g)})
	}
	if p.Right.Covers(control.Submit) {
		w.JobsRunAs = h.runAs.jobsRunAs(&p)
		c := h.settings.config.Load()
		w.MaxPending, w.MaxRunning, w.MaxBytes = c.MaxPendingUser, c.MaxRunningUser, h.quota.maxBytesUser()
		w.Bytes = h.store.UserBytes(p.UID)
	}
	if p.Right == control.None {
		w.Next = h.rights.howToGetRight(control.Submit, w.User)
	}
	return w, nil
}

// directory looks up accounts in the system's users and groups.
type directory struct{ accounts.Directory }
