package control

import (
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// Right names a set of actions that a user may take. Each right includes those before it.
type Right string

// The rights, the weakest first.
const (
	None    Right = "none"
	Read    Right = "read"
	Submit  Right = "submit"
	Operate Right = "operate"
	Admin   Right = "admin"
)

var rights = []Right{None, Read, Submit, Operate, Admin}

// Rights returns the rights that a user can be granted, the weakest first.
func Rights() []Right { return rights[1:] }

// Covers reports whether a right includes another. A value that is not a right includes none.
func (r Right) Covers(other Right) bool {
	have, need := slices.Index(rights, r), slices.Index(rights, other)
	return need >= 0 && have >= need
}

// Included returns the rights that a right includes, and the right itself.
func (r Right) Included() []Right { return rights[1 : 1+max(0, slices.Index(rights, r))] }

// Access holds the rights of users and groups, by uid and gid.
type Access struct {
	Users, Groups map[int]Right
}

// RightOf returns the strongest right that the user or one of the groups of the peer has.
func (a *Access) RightOf(p *Peer) Right {
	best := None
	raise := func(r Right) { // r is "" if no right was granted; "" covers nothing
		if r.Covers(best) {
			best = r
		}
	}
	raise(a.Users[p.UID])
	if len(a.Groups) == 0 {
		return best
	}
	raise(a.Groups[p.GID])
	for _, g := range p.Groups {
		raise(a.Groups[g])
	}
	return best
}

// RequiredRight returns the right that a method needs. own says whether it acts on the caller's own jobs or
// on other users' jobs. For an unknown method it returns "", which no right covers.
func RequiredRight(method string, own bool) Right {
	m := methodOf(method)
	switch {
	case m == nil:
		return ""
	case own:
		return m.Right
	}
	return m.OthersRight
}

// Visibility is how much of a job a user may see.
type Visibility int

// The values of Visibility. VisibleOutline is everything except the environment, the command and the
// output. VisibleInside is everything except the values of environment variables. VisibleWhole is everything.
const (
	VisibleOutline Visibility = iota
	VisibleInside
	VisibleWhole
)

// VisibilityFor returns how much of a job a user with a right may see. own says whether it is the user's own
// job.
func VisibilityFor(have Right, own bool) Visibility {
	switch {
	case have.Covers(Admin), own && have.Covers(Submit):
		return VisibleWhole
	case have.Covers(Operate):
		return VisibleInside
	}
	return VisibleOutline
}

// hiddenValue replaces the value of an environment variable that is not shown.
const hiddenValue = "***"

// nestedParams lists the fields of a spec that an VisibleOutline leaves out, because they show what the
// job executes.
var nestedParams = []string{"command", "argv", "shell", "stdin", "stdin_file", "env", "env_secret", "on_completed",
	"on_failed", "on_dead", "on_ended"}

// Hide removes the parts that the visibility does not include.
func (j *Job) Hide(s Visibility) {
	if s != VisibleOutline {
		return
	}
	j.Command, j.Argv, j.HookLines, j.Hidden = "", nil, queue.HookLines{}, []string{"command"}
	if j.Progress != nil { // the text is output
		j.Progress = &JobProgress{Percent: j.Progress.Percent, At: j.Progress.At}
	}
	if j.Error != nil { // the error may contain the name of the program
		j.Error = plainError(j.ExitCode, j.Signal, j.Reason)
	}
}

// Hide removes the parts that the visibility does not include.
func (d *JobDetail) Hide(s Visibility) {
	d.Job.Hide(s)
	switch s {
	case VisibleOutline:
		d.Output, d.Stderr, d.StdoutBytes, d.Result = "", "", 0, nil
		for _, name := range nestedParams {
			delete(d.Spec, name)
		}
		for i := range d.History {
			h := &d.History[i]
			if h.Error != nil {
				h.Error = plainError(h.ExitCode, h.Signal, h.Reason)
			}
			h.ResultError = nil
		}
		d.Hidden = append(d.Hidden, "env", "output")
	case VisibleInside:
		for _, field := range []string{"env", "env_secret"} {
			env, _ := d.Spec[field].(map[string]string)
			if len(env) == 0 {
				continue
			}
			for name := range env {
				env[name] = hiddenValue
			}
			d.Hidden = append(d.Hidden, field)
		}
	}
}

// plainError describes how an attempt ended without describing what it executed.
func plainError(code *int64, signal *int, reason *string) *string {
	switch {
	case code != nil:
		return optional(fmt.Sprintf("exit code %d", *code))
	case signal != nil:
		return optional("ended by " + queue.SignalText(*signal))
	}
	return reason
}

// HasHiddenValue reports whether an environment contains a value that was hidden. Storing it would
// overwrite the true value.
func HasHiddenValue(env map[string]string) bool {
	for _, v := range env {
		if v == hiddenValue {
			return true
		}
	}
	return false
}
