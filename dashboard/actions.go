package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// formHandler returns a handler for the forms (POST requests) on the server's own pages. The handler calls
// handleForm and redirects the browser to the path that handleForm returns. If allowedFields are given, the
// handler rejects forms with other fields.
func (s *Server) formHandler(
	handleForm func(ctx context.Context, v *visitor, r *http.Request) (redirectPath string, err error),
	allowedFields ...string,
) func(http.ResponseWriter, *http.Request, *visitor) error {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if !v.hasToken(r.PostFormValue("token")) {
			return errWrongToken
		}
		if allowedFields != nil {
			if err := checkParamNames(r.PostForm, append(allowedFields, "token")...); err != nil {
				return err
			}
		}
		to, err := handleForm(r.Context(), v, r)
		if err == nil {
			http.Redirect(w, r, to, http.StatusSeeOther)
		}
		return err
	}
}

// checkParamNames returns an error if the query contains a parameter that is not in allowedNames.
func checkParamNames(query url.Values, allowedNames ...string) error {
	return checkQueryParams(query, allowedNames, "leave it out", "use only: ")
}

// checkQueryParams returns an error if the query contains a parameter that is not in allowedNames, because the
// page would silently ignore it. The error ends with namesPrefix and the allowed names. If allowedNames is
// empty, it ends with advice.
func checkQueryParams(query url.Values, allowedNames []string, advice, namesPrefix string) error {
	for name := range query {
		if slices.Contains(allowedNames, name) {
			continue
		}
		if len(allowedNames) > 0 {
			advice = namesPrefix + strings.Join(allowedNames, ", ")
		}
		return queue.Invalid(queue.Clip(name), "unknown parameter; %s", advice)
	}
	return nil
}

// verb is an action on jobs that the pages offer, such as retry.
type verb struct {
	Name              string
	Label             string
	NeedsConfirmation bool          // the page shows the affected jobs first
	acceptedStates    []queue.State // states of jobs that the action accepts
	apply             func(c control.ActionAPI, ctx context.Context, p control.Selection) (control.BulkResult, error)
}

// runningStates contains the state of a running job.
var runningStates = []queue.State{queue.Processing}

// verbs lists the actions in the order in which pages show them.
var verbs = []verb{
	{"pause", "Pause", false, runningStates, control.ActionAPI.Pause},
	{"resume", "Resume", false, runningStates, control.ActionAPI.Resume},
	{"hold", "Hold", false, queue.VerbHold.ActsIn(), control.ActionAPI.Hold},
	{"release", "Release", false, queue.VerbRelease.ActsIn(), control.ActionAPI.Release},
	{"retry", "Retry", false, queue.VerbRetry.ActsIn(),
		func(c control.ActionAPI, ctx context.Context, p control.Selection) (control.BulkResult, error) {
			return c.Retry(ctx, control.Retry{Selection: p})
		}},
	{"requeue", "Requeue…", true, runningStates, control.ActionAPI.Requeue},
	{"cancel", "Cancel…", true, slices.Concat(runningStates, queue.VerbCancel.ActsIn()), control.ActionAPI.Cancel},
	{"rm", "Remove…", true, queue.VerbRemove.ActsIn(),
		func(c control.ActionAPI, ctx context.Context, p control.Selection) (control.BulkResult, error) {
			return c.Remove(ctx, control.Remove{Selection: p})
		}},
}

// acceptedStateNames returns the names of the states that the action accepts.
func (v *verb) acceptedStateNames() control.TextList { return queue.StateNames(v.acceptedStates) }

// verbsForJob returns the actions that are useful for a job in its current state.
func verbsForJob(j control.Job) (jobVerbs []verb) {
	useless := "resume"
	if j.PausedAt != 0 {
		useless = "pause"
	}
	for _, vb := range verbs {
		if slices.Contains(vb.acceptedStateNames(), j.State) && vb.Name != useless {
			jobVerbs = append(jobVerbs, vb)
		}
	}
	return jobVerbs
}

// findVerb returns the action with this name. The name comes from a form or a URL and may be invalid.
func findVerb(name string) (*verb, error) {
	if i := slices.IndexFunc(verbs, func(vb verb) bool { return vb.Name == name }); i >= 0 {
		return &verbs[i], nil
	}
	return nil, queue.Invalid("verb",
		"%q is not an action; use pause, resume, hold, release, retry, requeue, cancel or rm", queue.Clip(name))
}

// actOnJob applies an action to the job in the path of the request.
func actOnJob(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	vb, err := findVerb(r.PostFormValue("verb"))
	if err != nil {
		return "", err
	}
	id := jobIDOf(r.URL)
	got, err := vb.apply(v.client, ctx, control.Selection{ID: id})
	if err == nil && len(got.Refusals) > 0 {
		err = queue.Errorf(got.Refusals[0].Code, "%s", refusalText(&got.Refusals[0]))
	}
	if vb.Name == "rm" {
		return "/jobs", err
	}
	return jobPath(string(id)), err
}

// refusalText returns the reason why the service refused to change a job. The text contains the id of the job.
func refusalText(r *control.Refusal) string {
	text := r.Err().Error()
	if strings.Contains(text, "job "+r.ID) || strings.Contains(text, strconv.Quote(r.ID)) {
		return text
	}
	return "job " + r.ID + ": " + text
}

// bulkOutcome is the result of an action on several jobs.
type bulkOutcome struct {
	doneCount, refusedCount int
	matchCount              int // number of selected jobs; set only after a dry run
	firstRefusal            control.Refusal
}

// addResult adds the result of one API request to the outcome.
func (o *bulkOutcome) addResult(result *control.BulkResult) {
	if o.refusedCount == 0 && len(result.Refusals) > 0 {
		o.firstRefusal = result.Refusals[0]
	}
	o.doneCount, o.refusedCount = o.doneCount+len(result.DoneIDs), o.refusedCount+len(result.Refusals)
	o.matchCount += queue.ValueOr(result.MatchCount, 0)
}

// refusalError returns an error about the first job that the service refused to change. It returns nil if the
// service refused no job.
func (o *bulkOutcome) refusalError(verbName string) error {
	if o.refusedCount == 0 {
		return nil
	}
	return queue.Errorf(o.firstRefusal.Code, "%s was done for %s and refused for %d; first refusal: %s", verbName,
		present.JobsText(o.doneCount), o.refusedCount, refusalText(&o.firstRefusal))
}

// jobPath returns the path of a job's page. Usually the path contains the id. If browsers would change such a
// path, for example because the id contains "..", the id is a query parameter.
func jobPath(id string) string {
	if urlPath := "/jobs/" + id; path.Clean(urlPath) == urlPath {
		return urlPath
	}
	return "/job?id=" + url.QueryEscape(id)
}

// attemptPath returns the path of the job's page that shows the output of one attempt.
func attemptPath(id string, attemptNumber int) string {
	urlPath := jobPath(id)
	if strings.Contains(urlPath, "?") {
		return urlPath + "&attempt=" + strconv.Itoa(attemptNumber)
	}
	return urlPath + "?attempt=" + strconv.Itoa(attemptNumber)
}

// applyToAll applies an action to all selected jobs, with several API requests if necessary. It returns an
// error if the service refused to change some of the jobs.
func (v *visitor) applyToAll(
	ctx context.Context, vb *verb, selections ...control.Selection,
) (total bulkOutcome, err error) {
	for _, sel := range selections {
		for more := true; more; more = sel.Cursor != "" {
			got, err := vb.apply(v.client, ctx, sel)
			if err != nil {
				return total, err
			}
			total.addResult(&got)
			sel.Cursor = present.EmptyIfNil(got.Next)
		}
	}
	return total, total.refusalError(vb.Name)
}

// countSelected returns how many of the selected jobs an action would change.
func (v *visitor) countSelected(ctx context.Context, vb *verb, sel control.Selection) (int, error) {
	sel.DryRun = true
	all, err := v.applyToAll(ctx, vb, sel)
	return all.matchCount, err
}

// bulkPreview is the page that shows which jobs an action on several jobs would change. It changes nothing.
var bulkPreview = &view{name: "bulk", navEntry: "jobs", fill: fillBulkPreviewPage}

// fillBulkPreviewPage fills the page bulkPreview.
func fillBulkPreviewPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	q := u.Query()
	vb, err := findVerb(q.Get("verb"))
	if err != nil {
		return err
	}
	sel, f, err := parseSelection(q, vb)
	if err != nil {
		return err
	}
	p.Title, p.CLICommand = strings.TrimSuffix(vb.Label, "…"), "queuectl "+vb.Name+" ID… --dry-run"
	n, err := v.countSelected(ctx, vb, sel)
	if err != nil {
		return err
	}
	sample := []control.Job{}
	if len(sel.IDs) == 0 {
		params := f.listRequest()
		params.State, params.Limit = sel.State, previewRows
		list, err := v.client.List(ctx, params)
		if err != nil {
			return err
		}
		sample = list.Jobs
	}
	for _, id := range sel.IDs[:min(len(sel.IDs), previewRows)] {
		d, err := v.client.Show(ctx, control.Show{ID: control.JobID(id), WithoutEnv: true})
		if err != nil {
			return err
		}
		sample = append(sample, d.Job)
	}
	again := q.Has("n")
	q.Del("n")
	p.Content = previewData{preview: preview{p.Title, int64(n), int64(max(0, len(sel.IDs)-n)), again, sample},
		AcceptedStates: strings.Join(vb.acceptedStateNames(), ", "), Fields: q, BackPath: f.listPath()}
	return nil
}

// preview is the data that the pages bulkPreview and deadPreview have in common.
type preview struct {
	Label           string // name of the action
	AffectedCount   int64  // number of jobs that the action would change
	UnaffectedCount int64  // number of selected jobs that it would not change
	JobsChanged     bool   // the jobs have changed since the last preview
	Jobs            []control.Job
}

// previewData is the data of the page bulkPreview.
type previewData struct {
	preview
	AcceptedStates string     // names of the states that the action accepts
	Fields         url.Values // hidden fields of the form
	BackPath       string     // path of the list of jobs, to which the page links
}

// actOnMany applies an action to the jobs that a preview has shown. If more jobs match the filter now, it
// changes nothing and sends the browser to a new preview.
func actOnMany(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	vb, err := findVerb(r.PostFormValue("verb"))
	if err != nil {
		return "", err
	}
	sel, f, err := parseSelection(r.PostForm, vb)
	if err != nil {
		return "", err
	}
	if shown := r.PostFormValue("n"); len(sel.IDs) == 0 {
		n, err := strconv.Atoi(shown)
		if err != nil {
			return "", queue.Invalid("n", "the form does not say how many jobs the preview showed (%q); open the preview "+
				"again", queue.Clip(shown))
		}
		now, err := v.countSelected(ctx, vb, sel)
		if err != nil {
			return "", err
		}
		if now > n {
			q := f.Query()
			q.Set("verb", vb.Name)
			q.Set("n", shown)
			return "/bulk?" + q.Encode(), nil
		}
	}
	all, err := v.applyToAll(ctx, vb, sel)
	if err != nil {
		return "", err
	}
	if len(sel.IDs) == 1 && vb.Name != "rm" {
		return jobPath(sel.IDs[0]), nil
	}
	q := f.Query()
	q.Set("did", vb.Name)
	q.Set("n", strconv.Itoa(all.doneCount))
	return "/jobs?" + q.Encode(), nil
}

// errNoSuchCause is the error for a cause of death with which no job has died.
var errNoSuchCause = queue.Errorf(queue.CodeNotFound,
	"none of the newest %d dead jobs has this command and error; list all dead jobs: queuectl dlq list", maxDeadJobs)

// changeableDeadJobs returns the jobs with the cause of death c that the visitor may change, and the number of
// jobs with this cause that the visitor may not change.
func (v *visitor) changeableDeadJobs(
	ctx context.Context, p *page, c deathCause,
) (changeable []control.Job, unchangeableCount int, err error) {
	jobs, _, err := v.deadJobs(ctx, c)
	for _, j := range jobs {
		switch {
		case !c.matches(j.deathCause):
		case p.Owns(j.Job):
			changeable = append(changeable, j.Job)
		default:
			unchangeableCount++
		}
	}
	if err == nil && len(changeable)+unchangeableCount == 0 {
		err = errNoSuchCause
	}
	return changeable, unchangeableCount, err
}

// deadPreview is the page that shows which dead jobs the action retry or rm would change. It changes nothing.
var deadPreview = &view{name: "dead_action", navEntry: "dead", cliCommand: "queuectl rm ID… --dry-run",
	fill: fillDeadPreviewPage}

// fillDeadPreviewPage fills the page deadPreview.
func fillDeadPreviewPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	vb, err := findDeadVerb(u)
	if err != nil {
		return err
	}
	p.Title = strings.TrimSuffix(vb.Label, "…")
	if vb.Name == "retry" {
		p.CLICommand = "queuectl dlq retry ID… --dry-run"
	}
	c := parseDeathCause(u.Query().Get)
	jobs, others, err := v.changeableDeadJobs(ctx, p, c)
	if err != nil {
		return err
	}
	p.Content = previewDeadData{preview{p.Title, int64(len(jobs)), int64(others), u.Query().Has("again"),
		jobs[:min(len(jobs), previewRows)]}, vb.Name, c, digestOf(jobs)}
	return nil
}

// previewDeadData is the data of the page deadPreview.
type previewDeadData struct {
	preview
	Verb       string // name of the action in requests
	Cause      deathCause
	JobsDigest string // digest of the jobs; see digestOf
}

// digestOf returns a hash that identifies a list of jobs. actOnDead uses it to notice that the list has
// changed.
func digestOf(jobs []control.Job) string {
	sum := sha256.New()
	for _, j := range jobs {
		fmt.Fprintf(sum, "%d %s\n", j.Seq, j.ID)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// findDeadVerb returns the action in the path of a request. Only retry and rm are valid.
func findDeadVerb(u *url.URL) (*verb, error) {
	name := strings.TrimPrefix(u.Path, "/dead/")
	if name != "retry" && name != "rm" {
		return nil, noPageError(u.Path)
	}
	return findVerb(name)
}

// actOnDead applies an action to the dead jobs with one cause, or to one of them. Before it removes jobs, it
// checks that they are those in the preview; otherwise it sends the browser to a new preview.
func actOnDead(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	vb, err := findDeadVerb(r.URL)
	if err != nil {
		return "", err
	}
	p := page{Token: v.token}
	if err := v.setUserAndRight(ctx, &p); err != nil {
		return "", err
	}
	c := parseDeathCause(r.PostFormValue)
	jobs, _, err := v.changeableDeadJobs(ctx, &p, c)
	if err != nil {
		return "", err
	}
	var ids control.JobIDs
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	one := false
	if vb.Name == "retry" {
		params := control.DLQRetry{}
		if text := strings.TrimSpace(r.PostFormValue("timeout")); text != "" {
			d, err := queue.ParseDuration(text)
			if err != nil {
				return "", queue.Invalid("timeout", "%v", err)
			}
			params.Timeout = new(control.Duration(d))
		}
		vb = &verb{Name: vb.Name, apply: func(_ control.ActionAPI, ctx context.Context,
			p control.Selection) (control.BulkResult, error) {
			params.IDs = p.IDs
			return v.client.DLQRetry(ctx, params)
		}}
		if one = r.PostFormValue("n") == "1"; one {
			ids = ids[:min(len(ids), 1)]
		}
	} else if r.PostFormValue("shown") != digestOf(jobs) {
		return c.Path(r.URL.Path) + "&again=", nil
	}
	var selections []control.Selection
	for part := range slices.Chunk(ids, control.MaxSelectedPerRequest) {
		selections = append(selections, control.Selection{IDs: part})
	}
	all, err := v.applyToAll(ctx, vb, selections...)
	if err != nil {
		return "", err
	}
	if one && len(ids) == 1 {
		return jobPath(ids[0]), nil
	}
	return "/dead?" + url.Values{"did": {vb.Name}, "n": {strconv.Itoa(all.doneCount)}}.Encode(), nil
}

// scaleWorkers handles a form that sets the number of workers.
func scaleWorkers(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	n, err := strconv.Atoi(r.PostFormValue("n"))
	if err != nil {
		return "", queue.Invalid("n", "%q is not a number of workers; give a whole number from 0 to 4096",
			queue.Clip(r.PostFormValue("n")))
	}
	_, err = v.client.WorkerScale(ctx, control.WorkerScale{Count: n})
	return "/workers", err
}

// changeQueue handles a form that pauses or resumes a queue.
func changeQueue(ctx context.Context, v *visitor, r *http.Request) (redirectPath string, err error) {
	name := r.PostFormValue("queue")
	switch r.PostFormValue("verb") {
	case "pause":
		_, err = v.client.QueuePause(ctx, control.QueuePause{Name: name, Reason: r.PostFormValue("reason")})
	case "resume":
		_, err = v.client.QueueResume(ctx, control.QueueResumeParams{Name: name})
	default:
		err = queue.Invalid("verb", "%q is not an action; use pause or resume", queue.Clip(r.PostFormValue("verb")))
	}
	return "/", err
}

// changeSchedule handles a form that pauses, resumes or runs a schedule.
func changeSchedule(ctx context.Context, v *visitor, r *http.Request) (redirectPath string, err error) {
	name := control.ScheduleNameParams{Name: r.PostFormValue("schedule")}
	switch verb := r.PostFormValue("verb"); verb {
	case "pause":
		_, err = v.client.SchedulePause(ctx, name)
	case "resume":
		_, err = v.client.ScheduleResume(ctx, name)
	case "run":
		var enqueued control.EnqueueResult
		if enqueued, err = v.client.ScheduleRun(ctx, name); err == nil {
			return jobPath(enqueued.ID), nil
		}
	default:
		err = queue.Invalid("verb", "%q is not an action; use pause, resume or run", queue.Clip(verb))
	}
	return "/schedules", err
}
