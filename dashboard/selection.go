package dashboard

import (
	"net/url"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// jobFilter selects the jobs of a list or a form. The URL's query contains it.
type jobFilter struct {
	// Q is a pattern for ids. Label has the form NAME=VALUE. An empty field matches all jobs.
	State, Queue, User, Q, Label string
}

// filterNames contains the names of the query parameters of a filter.
var filterNames = []string{"state", "queue", "user", "q", "label"}

// filterOf reads a filter from a query.
func filterOf(q url.Values) (jobFilter, error) {
	f := jobFilter{State: q.Get("state"), Queue: q.Get("queue"), User: q.Get("user"), Q: q.Get("q"), Label: q.Get("label")}
	if f.Label != "" && f.labels() == nil {
		return f, queue.Invalid("label", "%q is not NAME=VALUE; write it like tier=gold", queue.Clip(f.Label))
	}
	return f, nil
}

// Query returns the filter as a query.
func (f jobFilter) Query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"state": f.State, "queue": f.Queue, "user": f.User, "q": f.Q,
		"label": f.Label} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// path returns the path of the list of jobs with this filter.
func (f jobFilter) path() string { return strings.TrimSuffix("/jobs?"+f.Query().Encode(), "?") }

// labels returns the field Label in the form that the API uses.
func (f jobFilter) labels() control.Labels {
	name, value, found := strings.Cut(f.Label, "=")
	if !found || name == "" {
		return nil
	}
	return control.Labels{name: value}
}

// listRequest returns the API request that lists the jobs of the filter.
func (f jobFilter) listRequest() control.List {
	params := control.List{Queue: f.Queue, User: f.User, IDGlob: f.Q, Label: f.labels()}
	if f.State != "" {
		params.State = control.TextList{f.State}
	}
	return params
}

// cliCommand returns the queuectl command line that lists the jobs of the filter.
func (f jobFilter) cliCommand() string {
	cli := "queuectl list"
	for _, part := range [][2]string{{"--state", f.State}, {"--queue", f.Queue}, {"--user", f.User}, {"--id-glob", f.Q},
		{"--label", f.Label}} {
		if part[1] != "" {
			cli += " " + part[0] + " " + queue.QuoteShellWord(part[1])
		}
	}
	return cli
}

// tab is a tab above a list of jobs. It leads to the jobs in one state.
type tab struct {
	State, Path string
	Count       int64 // number of jobs; -1 if unknown
}

// tabs returns one tab per state. Each leads to the list with the same filter and that state. Tabs of a
// filtered list show no counts, since only the counts of the whole queue are known.
func (f jobFilter) tabs(st *control.Status) (list []tab) {
	for _, s := range append([]string{""}, queue.StateNames(queue.States())...) {
		t := tab{State: s, Count: -1}
		other := f
		other.State = s
		if t.Path = other.path(); s != "" && (other == jobFilter{State: s}) {
			t.Count = st.Jobs[s]
		}
		list = append(list, t)
	}
	return list
}

// selectionNames contains the names of the parameters that a form for several jobs has apart from filterNames.
var selectionNames = []string{"id", "verb", "token", "n"}

// selectionOf returns the selection of a form: the marked jobs. If no job is marked, it is all jobs that match
// the filter and that the action accepts.
func selectionOf(q url.Values, vb *verb) (p control.Selection, f jobFilter, err error) {
	for name := range q {
		if !slices.Contains(filterNames, name) && !slices.Contains(selectionNames, name) {
			// With a misspelled filter, other jobs than intended would be selected.
			return p, f, queue.Invalid(queue.Clip(name), "unknown filter; use one of: %s", strings.Join(filterNames, ", "))
		}
	}
	if f, err = filterOf(q); err != nil {
		return p, f, err
	}
	if ids := q["id"]; len(ids) > 0 {
		if len(ids) > control.MaxSelectedPerRequest {
			return p, f, queue.Invalid("id", "too many jobs selected (%d); select at most %d", len(ids),
				control.MaxSelectedPerRequest)
		}
		return control.Selection{IDs: ids}, f, nil
	}
	p = control.Selection{Queue: f.Queue, User: f.User, IDGlob: f.Q, Label: f.labels(), State: vb.states()}
	if f.State == "" {
		return p, f, nil
	}
	states, err := queue.ParseStates(f.State)
	states = slices.DeleteFunc(states, func(s queue.State) bool { return !slices.Contains(vb.acceptedStates, s) })
	p.State = queue.StateNames(states)
	if err == nil && len(states) == 0 {
		err = queue.Invalid("state", "the action %s does not apply to jobs that are %s, only to jobs that are %s", vb.Name,
			queue.Clip(f.State), strings.Join(vb.states(), ", "))
	}
	return p, f, err
}
