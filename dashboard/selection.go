package dashboard

import (
	"net/url"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// jobFilter selects the jobs that a list shows or that a form acts on. In a URL, the filter is part of the query.
type jobFilter struct {
	// Q is a pattern for job ids, and Label has the form NAME=VALUE. An empty field matches all jobs.
	State, Queue, User, Q, Label string
}

// filterParamNames contains the names of the query parameters of a filter, in the order of the values of
// jobFilter.fields. filterFlags contains the flags of "queuectl list" in the same order.
var (
	filterParamNames = []string{"state", "queue", "user", "q", "label"}
	filterFlags      = []string{"--state", "--queue", "--user", "--id-glob", "--label"}
)

// fields returns pointers to the fields of the filter.
func (f *jobFilter) fields() []*string { return []*string{&f.State, &f.Queue, &f.User, &f.Q, &f.Label} }

// parseJobFilter reads a filter from a query.
func parseJobFilter(q url.Values) (f jobFilter, err error) {
	for i, field := range f.fields() {
		*field = q.Get(filterParamNames[i])
	}
	if f.Label != "" && f.labels() == nil {
		return f, invalidValue("label", f.Label, "is not NAME=VALUE; write it like tier=gold")
	}
	return f, nil
}

// Query returns the filter as the query of a URL.
func (f jobFilter) Query() url.Values {
	return nonEmptyParams(filterParamNames, f.fields())
}

// nonEmptyParams returns a query with the parameters whose values are not empty.
func nonEmptyParams(names []string, values []*string) url.Values {
	q := url.Values{}
	for i, value := range values {
		if *value != "" {
			q.Set(names[i], *value)
		}
	}
	return q
}

// listPath returns the path of the list of jobs with this filter.
func (f jobFilter) listPath() string { return strings.TrimSuffix("/jobs?"+f.Query().Encode(), "?") }

// labels returns the field Label in the form that the API uses. It returns nil if Label is not NAME=VALUE.
func (f jobFilter) labels() control.Labels {
	name, value, found := strings.Cut(f.Label, "=")
	if !found || name == "" {
		return nil
	}
	return control.Labels{name: value}
}

// listParams returns the API request that lists the jobs of the filter.
func (f jobFilter) listParams() control.JobListParams {
	params := control.JobListParams{Queue: f.Queue, Submitter: f.User, IDGlob: f.Q, WithLabels: f.labels()}
	if f.State != "" {
		params.States = control.TextList{f.State}
	}
	return params
}

// cliCommand returns the queuectl command line that lists the same jobs.
func (f jobFilter) cliCommand() string {
	cli := "queuectl list"
	for i, field := range f.fields() {
		if *field != "" {
			cli += " " + filterFlags[i] + " " + queue.QuoteShellWord(*field)
		}
	}
	return cli
}

// stateTab is a tab above a list of jobs. It links to the list of the jobs in one state, or of all jobs if State is "".
type stateTab struct {
	State, Path string
	Count       int64 // number of jobs; -1 if unknown
}

// stateTabs returns one tab for all states and one for each state. Each tab applies the other fields of the filter f.
// If the list is filtered, the tabs show no counts, because only the counts of the whole queue are known.
func (f jobFilter) stateTabs(st *control.Status) (stateTabs []stateTab) {
	for _, s := range append([]string{""}, queue.StateNames(queue.States())...) {
		t := stateTab{State: s, Count: -1}
		other := f
		other.State = s
		if t.Path = other.listPath(); s != "" && (other == jobFilter{State: s}) {
			t.Count = st.Jobs[s]
		}
		stateTabs = append(stateTabs, t)
	}
	return stateTabs
}

// selectionParamNames contains the names of the parameters that a form for several jobs may have, in addition to
// filterParamNames.
var selectionParamNames = []string{"id", "verb", "token", "n"}

// parseSelection returns the action that a form requests, and the jobs that the form selects: the jobs that the visitor
// has marked or, if none is marked, all jobs that match the filter and are in a state that the action accepts.
func parseSelection(q url.Values) (action *jobAction, selection control.JobSelection, filter jobFilter, err error) {
	if action, err = findJobAction(q.Get("verb")); err != nil {
		return action, selection, filter, err
	}
	for name := range q {
		if !slices.Contains(filterParamNames, name) && !slices.Contains(selectionParamNames, name) {
			// If a misspelled filter were ignored, the action would change other jobs than intended.
			return action, selection, filter, queue.InvalidFieldError(queue.ClipForMessage(name),
				"unknown filter; use one of: %s", strings.Join(filterParamNames, ", "))
		}
	}
	if filter, err = parseJobFilter(q); err != nil {
		return action, selection, filter, err
	}
	if ids := q["id"]; len(ids) > 0 {
		if len(ids) > control.MaxJobsPerSelection {
			err = queue.InvalidFieldError("id", "too many jobs selected (%d); select at most %d", len(ids),
				control.MaxJobsPerSelection)
		}
		return action, control.JobSelection{IDs: ids}, filter, err
	}
	selection = control.JobSelection{Queue: filter.Queue, Submitter: filter.User, IDGlob: filter.Q,
		WithLabels: filter.labels(), States: action.acceptedStateNames()}
	if filter.State == "" {
		return action, selection, filter, nil
	}
	states, err := queue.ParseStates(filter.State)
	states = slices.DeleteFunc(states, func(s queue.State) bool { return !slices.Contains(action.acceptedStates, s) })
	selection.States = queue.StateNames(states)
	if err == nil && len(states) == 0 {
		err = queue.InvalidFieldError("state", "the action %s does not apply to jobs that are %s, only to jobs that are %s",
			action.Name,
			queue.ClipForMessage(filter.State), strings.Join(action.acceptedStateNames(), ", "))
	}
	return action, selection, filter, err
}
