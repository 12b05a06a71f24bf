package control

import (
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// Right is what somebody may do; each includes those before it.
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

// Rights lists the rights that somebody can be given, the weakest first.
func Rights() []Right { return rights[1:] }

// Covers reports whether a right includes another. What is no right includes none.
func (r Right) Covers(other Right) bool {
	have, need := slices.Index(rights, r), slices.Index(rights, other)
	return need >= 0 && have >= need
}

// Included lists the rights that a right includes, itself too.
func (r Right) Included() []Right { return rights[1 : 1+max(0, slices.Index(rights, r))] }

// Access is who has which right, by the kernel's numbers.
type Access struct {
	Users, Groups map[int]Right
}

// Of is the strongest right that a peer has, by itself or by one of its groups.
func (a *Access) Of(p *Peer) Right {
	best := None
	raise := func(r Right) { // "" where none is given, which covers nothing
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

// Needs is the right that a method asks for: of one's own jobs, or where they are
// another's. An unknown method asks for more than anybody has.
func Needs(method string, own bool) Right {
	m := methodOf(method)
	switch {
	case m == nil:
		return ""
	case own:
		return m.Right
	}
	return m.Others
}

// Visibility is how much of a job somebody sees.
type Visibility int

// The sights: all but environment, command and output; all but the values of the
// environment; everything.
const (
	Outline Visibility = iota
	Inside
	Whole
)

// Sees is how much a right shows of one's own jobs, or of another's.
func Sees(have Right, own bool) Visibility {
	switch {
	case have.Covers(Admin), own && have.Covers(Submit):
		return Whole
	case have.Covers(Operate):
		return Inside
	}
	return Outline
}

// hiddenValue stands for the value of a variable that is not shown.
const hiddenValue = "***"

// inside are the fields of a spec that an outline leaves out: what is run.
var inside = []string{"command", "argv", "shell", "stdin", "stdin_file", "env", "env_secret", "on_completed", "on_failed", "on_dead", "on_ended"}

// Hide leaves out what a sight does not show.
func (j *Job) Hide(s Visibility) {
	if s != Outline {
		return
	}
	j.Command, j.Argv, j.HookLines, j.Hidden = "", nil, queue.HookLines{}, []string{"command"}
	if j.Progress != nil { // what it says is output
		j.Progress = &JobProgress{Percent: j.Progress.Percent, At: j.Progress.At}
	}
	if j.Error != nil { // it may name the program
		j.Error = plainError(j.ExitCode, j.Signal, j.Reason)
	}
}

// Hide leaves out what a sight does not show.
func (d *JobDetail) Hide(s Visibility) {
	d.Job.Hide(s)
	switch s {
	case Outline:
		d.Output, d.Stderr, d.StdoutBytes, d.Result = "", "", 0, nil
		for _, name := range inside {
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
	case Inside:
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

// plainError says how an attempt ended without a word of what it ran.
func plainError(code *int64, signal *int, reason *string) *string {
	switch {
	case code != nil:
		return optional(fmt.Sprintf("exit code %d", *code))
	case signal != nil:
		return optional("ended by " + queue.SignalText(*signal))
	}
	return reason
}

// HoldsHidden reports whether an environment has a value that was not shown: it would
// take the place of the true one.
func HoldsHidden(env map[string]string) bool {
	for _, v := range env {
		if v == hiddenValue {
			return true
		}
	}
	return false
}
