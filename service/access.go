package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// access is [access] by the numbers that users and groups have here, as of the moment
// when the settings were read.
type access struct {
	control.Access
	unknown []string // names that nobody here has
}

// lookUp has [access] hold as the settings of now have it. It may wait for a directory on
// the network, so no lock is held: who is overtaken by a change begins again.
func (s *Service) lookUp() {
	for {
		old, c := s.who.Load(), s.config.Load()
		if s.who.CompareAndSwap(old, resolve(&s.directory, &c.Settings)) && s.config.Load() == c {
			return
		}
	}
}

// resolve looks the names of [access] up.
func resolve(d *accounts.Directory, c *config.Settings) *access {
	a := &access{Access: control.Access{Users: map[int]control.Right{}, Groups: map[int]control.Right{}}}
	for _, right := range control.Rights() { // the strongest last: it stays
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

// unknownNames says which names of [access] nobody here has, "" if there are none.
func (s *Service) unknownNames() string {
	if list := s.who.Load().unknown; len(list) > 0 {
		return fmt.Sprintf("the settings section [access] names unknown users or groups: %s", strings.Join(list, ", "))
	}
	return ""
}

// Right implements control.Authorizer. Root and the service's own user may do everything.
func (s *Service) Right(p *control.Peer) control.Right {
	switch c := s.config.Load(); {
	case p.UID == anybody && c.WebAnonymous == "read", p.UID == scraper && c.WebMetrics == "true":
		return control.Read
	case p.UID == anybody, p.UID == scraper:
		return control.None
	}
	if p.Root() || p.UID == accounts.Self() {
		return control.Admin
	}
	return s.who.Load().Of(p)
}

// peerName is the name of who asks.
func (s *Service) peerName(uid int) string {
	if uid == anybody || uid == scraper {
		return "anybody"
	}
	return s.directory.UserName(uid)
}

// Refuse implements control.Authorizer.
func (s *Service) Refuse(p *control.Peer, what string, needs control.Right) error {
	you := s.peerName(p.UID)
	if !p.Right.Covers(control.Read) {
		return queue.Errorf(queue.CodeDenied, "you (%s) have no rights on this service, which belongs to %s; %s", you, s.directory.UserName(accounts.Self()), s.wayTo(control.Submit, you))
	}
	return queue.Errorf(queue.CodeDenied, "%s needs the right %s, but you (%s) have %s; %s", what, needs, you, p.Right, s.wayTo(needs, ""))
}

// wayTo says how somebody, of a name if they have no right at all yet, gets a right.
func (s *Service) wayTo(needs control.Right, name string) string {
	c := s.config.Load()
	grant := "ask an admin to grant it in the section [access] of " + s.opt.Places.File
	if name != "" {
		grant = "ask an admin to grant you a right in the section [access] of " + s.opt.Places.File
	}
	for _, right := range control.Rights() {
		if !right.Covers(needs) {
			continue
		}
		for _, n := range c.Access(string(right)) {
			group, isGroup := strings.CutPrefix(n, "@")
			switch {
			case isGroup && name != "":
				return fmt.Sprintf("members of the group %s have the right %s; join this group ("+joinGroup+"), or %s", group, right, group, name, grant)
			case isGroup:
				return fmt.Sprintf("join the group %s, which has the right %s, or %s", group, right, grant)
			}
		}
	}
	return grant
}

// mayAct refuses a method on a job of somebody else to who may use it on their own
// alone.
func (s *Service) mayAct(p *control.Peer, method string, j *queue.Job) error {
	return s.mayActOn(p, method, "job", j)
}

// mayActOn is mayAct for a job, or for a schedule of such jobs.
func (s *Service) mayActOn(p *control.Peer, method, what string, j *queue.Job) error {
	own := s.owns(p, j)
	needs := control.Needs(method, own)
	switch {
	case j.UID < 0 && !p.Right.Covers(control.Admin):
		return s.Refuse(p, fmt.Sprintf("%s on a %s that belongs to a former account (%s)", method, what, j.ID), control.Admin)
	case p.Right.Covers(needs):
		return nil
	}
	if own {
		return s.Refuse(p, method, needs)
	}
	return s.Refuse(p, fmt.Sprintf("%s on another user's %s (%s)", method, what, j.ID), needs)
}

// sees is how much a peer may see of a job. Those of former accounts are the admins'
// alone.
func (s *Service) sees(p *control.Peer, j *queue.Job) control.Visibility {
	if j.UID < 0 && !p.Right.Covers(control.Admin) {
		return control.Outline
	}
	return control.Sees(p.Right, s.owns(p, j))
}

// hides reports whether somebody may not know of a job: a hook of the settings, which is the operators'
// alone, and its own user's.
func (s *Service) hides(p *control.Peer, j *queue.Job) bool {
	return j.Private() != nil && !p.Right.Covers(control.Operate) && !s.owns(p, j)
}

// mayKnow reports whether somebody may know of a job of which its user, if this is one, and
// operators alone may.
func mayKnow(p *control.Peer, private *int) bool {
	return private == nil || *private == p.UID || p.Right.Covers(control.Operate)
}

// get reads a job for somebody, without what may be large.
func (s *Service) get(ctx context.Context, p *control.Peer, id string) (queue.Job, error) {
	j, err := s.store.Get(ctx, id)
	if err == nil && s.hides(p, &j) {
		return queue.Job{}, errNoJob(id)
	}
	return j, err
}

// errNoJob is the same error as the store's, so that a hidden job looks like none.
func errNoJob(id string) error {
	return queue.NoJob(id)
}

// owns reports whether a job is a peer's own. One that runs keeps its uid also when that
// was given to another account meanwhile.
func (s *Service) owns(p *control.Peer, j *queue.Job) bool {
	return j.UID == p.UID && (j.AsUID != nil || s.renamed(j.UID, j.User) == nil)
}

// ownOnly is the uid whose jobs alone a method on many reaches, nil if it reaches all.
func ownOnly(p *control.Peer, method string) *int {
	if p.Right.Covers(control.Needs(method, false)) {
		return nil
	}
	return &p.UID
}

// audit records what somebody does that no other event tells of, before it is done: j
// is the job that it is done to, nil if it is none.
// See docs/decisions/0074.
func (s *Service) audit(ctx context.Context, verb, target string, j *queue.Job) error {
	p := control.PeerFrom(ctx)
	a := store.Audit{UID: p.UID, PID: p.PID, Verb: verb, Target: target}
	if j != nil {
		a.Job, a.ID = j.Seq, j.ID
	}
	return s.store.Audit(ctx, a)
}

// users looks up whom jobs of one request are to run as.
type users struct {
	s     *Service
	peer  *control.Peer
	known map[string]asUser
}

// asUser is the account that a job runs as.
type asUser struct {
	uid  int
	name string
}

// of is the account of a name, if who asks may have jobs run as it.
func (a *users) of(name string) (asUser, error) {
	if as, known := a.known[name]; known {
		return as, nil
	}
	uid, ok := a.s.directory.UserID(name)
	as := asUser{uid: uid, name: a.s.directory.UserName(uid)}
	nameless := as.name == strconv.Itoa(uid) // of those only who is there for sure
	if !ok || nameless && uid != a.peer.UID && uid != accounts.Self() {
		return asUser{}, queue.Invalid("user", "there is no user %q on this machine", queue.Clip(name))
	}
	if err := a.s.mayRunAs(a.peer, as); err != nil {
		return asUser{}, err
	}
	if a.known == nil {
		a.known = map[string]asUser{}
	}
	a.known[name] = as
	return as, nil
}

// mayRunAs refuses a user that jobs cannot run as, or not for who asks.
func (s *Service) mayRunAs(p *control.Peer, as asUser) error {
	needs := control.Needs("enqueue", false)
	switch {
	case as.uid == s.account.RunsAs(&queue.Job{UID: p.UID}), s.account.Each && p.Right.Covers(needs):
		return nil
	case s.account.Each:
		return s.Refuse(p, "a job that runs as another user ("+as.name+")", needs)
	}
	return &queue.Error{Code: queue.CodeDenied, Field: "user", Message: fmt.Sprintf("jobs of this service run as %[2]s and cannot run as %[1]s; "+asSubmitters,
		as.name, s.jobsRunAs(p), s.opt.Places.File)}
}

// jobsRunAs is the user that a job runs as which a peer enqueues.
func (s *Service) jobsRunAs(p *control.Peer) string {
	if uid := s.account.RunsAs(&queue.Job{UID: p.UID}); uid != s.account.UID {
		return s.directory.UserName(uid)
	}
	return s.account.User
}

// whatRuns are the fields that say what a job runs, and with what.
var whatRuns = []string{"command", "argv", "shell", "env", "env_secret", "mask_secrets", "cwd", "umask", "stdin", "stdin_file", "no_new_privileges", "on_completed", "on_failed", "on_dead", "on_ended"}

// editing is what an edit asks for beside the fields that anybody may change of a job
// of their own.
type editing struct {
	runs   bool    // another thing is to be run
	hidden bool    // a value is one that stands for what is not shown
	named  bool    // whom it runs as is to change
	as     *asUser // to this user, or nil: by the service's rule
}

// editing reads a merge patch. Only admins may change whom a job runs as.
func (s *Service) editing(p *control.Peer, set json.RawMessage) (e editing, err error) {
	err = queue.Members(set, func(name string, value json.RawMessage) error {
		e.runs = e.runs || slices.Contains(whatRuns, name)
		switch name {
		case "env", "env_secret":
			var env map[string]string
			e.hidden = e.hidden || json.Unmarshal(value, &env) == nil && control.HoldsHidden(env) // what else is wrong with it is told later
		case "user":
			if !p.Right.Covers(control.Admin) {
				return s.Refuse(p, "changing the user that a job runs as", control.Admin)
			}
			e.named = true
			var name *string
			if err := json.Unmarshal(value, &name); err != nil {
				return queue.Invalid("user", "must be the name of a user, or null")
			}
			if name == nil {
				return nil
			}
			as, err := (&users{s: s, peer: p}).of(*name)
			if err == nil {
				err = s.mayRun(as.uid)
			}
			e.as = &as
			return err
		}
		return nil
	})
	return e, err
}

// mayEdit refuses changes of a job that would let who makes them become another user:
// its submitter, or whom an admin has it run as. Where root's runners are that may come
// with the next start, by another run_as. And it refuses those that would spoil what they
// cannot see.
// See docs/decisions/0075.
func (s *Service) mayEdit(p *control.Peer, e *editing, j *queue.Job) error {
	each := worker.Account{Each: true}
	switch {
	case e.hidden && j.UID != p.UID:
		return queue.Invalid("env", "contains \"***\" instead of a hidden value; leave out the variables that you do not change")
	case e.runs && s.home.Foreign() && each.RunsAs(j) != p.UID && !p.Right.Covers(control.Admin):
		return s.Refuse(p, "changing a job that runs as another user", control.Admin)
	}
	return nil
}

// apply changes whom a job runs as, if that was asked for.
func (e *editing) apply(j *queue.Job) {
	switch {
	case !e.named:
	case e.as == nil:
		j.AsUID, j.User = nil, ""
	default:
		j.AsUID, j.User = &e.as.uid, e.as.name
	}
}

// maxGroups is how many groups of somebody are told.
const maxGroups = 1000

// Whoami implements control.API.
func (s *Service) Whoami(ctx context.Context, _ control.Nothing) (w control.Whoami, err error) {
	p := control.PeerFrom(ctx)
	w = control.Whoami{
		UID: p.UID, User: s.peerName(p.UID), GID: p.GID, Group: s.directory.GroupName(p.GID), Groups: []control.GroupID{}, PID: p.PID,
		Right: p.Right, Rights: p.Right.Included(), RunAs: s.config.Load().RunAs,
		Service: string(s.opt.Places.Kind()), Socket: s.opt.Places.Socket,
	}
	for _, g := range p.Groups[:min(len(p.Groups), maxGroups)] {
		w.Groups = append(w.Groups, control.GroupID{GID: g, Name: s.directory.GroupName(g)})
	}
	if p.Right.Covers(control.Submit) {
		w.JobsRunAs = s.jobsRunAs(&p)
		c := s.config.Load()
		w.MaxPending, w.MaxRunning, w.MaxBytes = c.MaxPendingUser, c.MaxRunningUser, s.maxBytesUser()
		w.Bytes = s.store.UserBytes(p.UID)
	}
	if p.Right == control.None {
		w.Next = s.wayTo(control.Submit, w.User)
	}
	return w, nil
}
