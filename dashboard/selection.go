package dashboard

import (
	"net/url"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// filter is which jobs a list is of, or a form about many, as its page's query says.
type filter struct {
	State, Queue, User, Q, Label string // of IDs a pattern, of labels NAME=VALUE; "" is any
}

// filterNames are the parameters of a filter.
var filterNames = []string{"state", "queue", "user", "q", "label"}

// filterOf reads a filter.
func filterOf(q url.Values) (filter, error) {
	f := filter{State: q.Get("state"), Queue: q.Get("queue"), User: q.Get("user"), Q: q.Get("q"), Label: q.Get("label")}
	if f.Label != "" && f.labels() == nil {
		return f, queue.Invalid("label", "%q is not NAME=VALUE; write it like tier=gold", queue.Clip(f.Label))
	}
	return f, nil
}

// Values is the query that says the same.
func (f filter) Values() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"state": f.State, "queue": f.Queue, "user": f.User, "q": f.Q, "label": f.Label} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// path is where the list of these jobs is.
func (f filter) path() string { return strings.TrimSuffix("/jobs?"+f.Values().Encode(), "?") }

// labels are what the label means.
func (f filter) labels() control.Labels {
	name, value, found := strings.Cut(f.Label, "=")
	if !found || name == "" {
		return nil
	}
	return control.Labels{name: value}
}

// list asks for these jobs.
func (f filter) list() control.List {
	ask := control.List{Queue: f.Queue, User: f.User, IDGlob: f.Q, Label: f.labels()}
	if f.State != "" {
		ask.State = control.Texts{f.State}
	}
	return ask
}

// command is what lists these jobs on a command line.
func (f filter) command() string {
	cli := "queuectl list"
	for _, part := range [][2]string{{"--state", f.State}, {"--queue", f.Queue}, {"--user", f.User}, {"--id-glob", f.Q}, {"--label", f.Label}} {
		if part[1] != "" {
			cli += " " + part[0] + " " + queue.Word(part[1])
		}
	}
	return cli
}

// tab is one of the states of a list.
type tab struct {
	State, Path string
	Count       int64
}

// tabs lead to the same list of each state. Counts are of the whole queue, and so are not told of a part of it.
func (f filter) tabs(st *control.Status) (list []tab) {
	for _, s := range append([]string{""}, stateNames()...) {
		t := tab{State: s, Count: -1}
		other := f
		other.State = s
		if t.Path = other.path(); s != "" && (other == filter{State: s}) {
			t.Count = st.Jobs[s]
		}
		list = append(list, t)
	}
	return list
}

// stateNames are all states, by name.
func stateNames() (names []string) {
	for _, s := range queue.States() {
		names = append(names, s.String())
	}
	return names
}

// selectionNames are the other parameters of a form for many jobs.
var selectionNames = []string{"id", "verb", "token", "n"}

// selectionOf is what a form for many jobs means: those that are marked, or else all that its filter names and the
// verb takes.
func selectionOf(q url.Values, is *verb) (p control.Selection, f filter, err error) {
	for name := range q {
		if !slices.Contains(filterNames, name) && !slices.Contains(selectionNames, name) { // it would be of other jobs than somebody meant
			return p, f, queue.Invalid(queue.Clip(name), "unknown filter; use one of: %s", strings.Join(filterNames, ", "))
		}
	}
	if f, err = filterOf(q); err != nil {
		return p, f, err
	}
	if ids := q["id"]; len(ids) > 0 {
		if len(ids) > control.SelectStep {
			return p, f, queue.Invalid("id", "%d jobs are selected; select at most %d", len(ids), control.SelectStep)
		}
		return control.Selection{IDs: ids}, f, nil
	}
	p = control.Selection{Queue: f.Queue, User: f.User, IDGlob: f.Q, Label: f.labels(), State: is.states()}
	if f.State == "" {
		return p, f, nil
	}
	states, err := queue.ParseStates(f.State)
	p.State = nil
	for _, s := range states {
		if slices.Contains(is.takes, s) {
			p.State = append(p.State, s.String())
		}
	}
	if err == nil && p.State == nil {
		err = queue.Invalid("state", "the action %s does not apply to jobs that are %s, only to jobs that are %s", is.Name, queue.Clip(f.State), strings.Join(is.states(), ", "))
	}
	return p, f, err
}
