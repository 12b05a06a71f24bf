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

// formHandler returns a handler for the forms (POST requests) on the server's own pages. The handler calls handleForm
// and redirects the browser to the path that handleForm returns. If the caller passes allowedFields, the handler
// rejects forms with other fields.
func (s *Server) formHandler(
	handleForm func(ctx context.Context, v *visitor, r *http.Request) (redirectPath string, err error),
	allowedFields ...string,
) visitorHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, v *visitor) error {
		if !v.hasFormToken(r.PostFormValue("token")) {
			return errWrongFormToken
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

// checkQueryParams returns an error if the query contains a parameter that is not in allowedNames. Without the error,
// the page would silently ignore the parameter. The error ends with allowedNamesPrefix and the allowed names or, if
// allowedNames is empty, with noParamsAdvice.
func checkQueryParams(query url.Values, allowedNames []string, noParamsAdvice, allowedNamesPrefix string) error {
	for name := range query {
		if slices.Contains(allowedNames, name) {
			continue
		}
		if len(allowedNames) > 0 {
			noParamsAdvice = allowedNamesPrefix + strings.Join(allowedNames, ", ")
		}
		return queue.InvalidFieldError(queue.ClipForMessage(name), "unknown parameter; %s", noParamsAdvice)
	}
	return nil
}

// jobAction is an action on jobs that the pages offer, such as retry.
type jobAction struct {
	Name              string
	Label             string
	NeedsConfirmation bool          // the page first shows which jobs the action would change
	acceptedStates    []queue.State // states of jobs that the action accepts
	applyToJobs       func(c control.ActionAPI, ctx context.Context, p control.JobSelection) (control.BulkResult, error)
}

// runningStates contains the state of a running job.
var runningStates = []queue.State{queue.Processing}

// jobActions lists the actions in the order in which pages show them.
var jobActions = []jobAction{
	{"pause", "Pause", false, runningStates, control.ActionAPI.PauseJobs},
	{"resume", "Resume", false, runningStates, control.ActionAPI.ResumeJobs},
	{"hold", "Hold", false, queue.VerbHold.StatesWithEffect(), control.ActionAPI.HoldJobs},
	{"release", "Release", false, queue.VerbRelease.StatesWithEffect(), control.ActionAPI.ReleaseJobs},
	{"retry", "Retry", false, queue.VerbRetry.StatesWithEffect(),
		func(c control.ActionAPI, ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
			return c.RetryJobs(ctx, control.JobRetryParams{JobSelection: p})
		}},
	{"requeue", "Requeue…", true, runningStates, control.ActionAPI.RequeueJobs},
	{"cancel", "Cancel…", true, slices.Concat(runningStates, queue.VerbCancel.StatesWithEffect()),
		control.ActionAPI.CancelJobs},
	{"rm", "Remove…", true, queue.VerbRemove.StatesWithEffect(),
		func(c control.ActionAPI, ctx context.Context, p control.JobSelection) (control.BulkResult, error) {
			return c.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: p})
		}},
}

// acceptedStateNames returns the names of the states that the action accepts.
func (v *jobAction) acceptedStateNames() control.TextList { return queue.StateNames(v.acceptedStates) }

// actionsForJob returns the actions that are useful for a job in its current state.
func actionsForJob(j control.Job) (actions []jobAction) {
	useless := "resume"
	if j.PausedAt != 0 {
		useless = "pause"
	}
	for _, vb := range jobActions {
		if slices.Contains(vb.acceptedStateNames(), j.State) && vb.Name != useless {
			actions = append(actions, vb)
		}
	}
	return actions
}

// findJobAction returns the action with the given name. The name comes from a form or a URL and may be invalid.
func findJobAction(actionName string) (*jobAction, error) {
	if i := slices.IndexFunc(jobActions, func(vb jobAction) bool { return vb.Name == actionName }); i >= 0 {
		return &jobActions[i], nil
	}
	return nil, invalidValue("verb", actionName,
		"is not an action; use pause, resume, hold, release, retry, requeue, cancel or rm")
}

// handleJobAction applies an action to the job in the path of the request.
func handleJobAction(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	vb, err := findJobAction(r.PostFormValue("verb"))
	if err != nil {
		return "", err
	}
	id := jobIDFromURL(r.URL)
	got, err := vb.applyToJobs(v.client, ctx, control.JobSelection{ID: id})
	if err == nil && len(got.Refusals) > 0 {
		err = queue.Errorf(got.Refusals[0].Code, "%s", refusalText(&got.Refusals[0]))
	}
	if vb.Name == "rm" {
		return "/jobs", err
	}
	return jobPath(string(id)), err
}

// refusalText returns the reason why the service refused to change a job. The text always contains the id of the job.
func refusalText(r *control.Refusal) string {
	text := r.AsError().Error()
	if strings.Contains(text, "job "+r.JobID) || strings.Contains(text, strconv.Quote(r.JobID)) {
		return text
	}
	return "job " + r.JobID + ": " + text
}

// jobPath returns the path of a job's page. Usually the path contains the id. If the id would make browsers change the
// path, for example because it contains "..", the id is a query parameter instead.
func jobPath(id string) string {
	if urlPath := "/jobs/" + id; path.Clean(urlPath) == urlPath {
		return urlPath
	}
	return "/job?id=" + url.QueryEscape(id)
}

// attemptPath returns the path of the job's page with the output of one attempt.
func attemptPath(id string, attemptNumber int) string {
	urlPath, separator := jobPath(id), "?"
	if strings.Contains(urlPath, "?") {
		separator = "&"
	}
	return urlPath + separator + "attempt=" + strconv.Itoa(attemptNumber)
}

// applyActionToSelections applies an action to all selected jobs, with several API requests if necessary. It returns
// the number of changed jobs and, after a dry run, the number of selected jobs. If the service refused to change some
// of the jobs, it returns an error about the first of them.
func (v *visitor) applyActionToSelections(
	ctx context.Context, action *jobAction, selections ...control.JobSelection,
) (changedCount, selectedCount int, err error) {
	refusedCount, firstRefusal := 0, control.Refusal{}
	for _, sel := range selections {
		for more := true; more; more = sel.Cursor != "" {
			got, err := action.applyToJobs(v.client, ctx, sel)
			if err != nil {
				return changedCount, selectedCount, err
			}
			if refusedCount == 0 && len(got.Refusals) > 0 {
				firstRefusal = got.Refusals[0]
			}
			refusedCount += len(got.Refusals)
			changedCount += len(got.ChangedJobIDs)
			selectedCount += queue.ValueOr(got.SelectedCount, 0)
			sel.Cursor = present.EmptyIfNil(got.NextCursor)
		}
	}
	if refusedCount > 0 {
		err = queue.Errorf(firstRefusal.Code, "%s was done for %s and refused for %d; first refusal: %s", action.Name,
			present.JobCountText(changedCount), refusedCount, refusalText(&firstRefusal))
	}
	return changedCount, selectedCount, err
}

// countAffectedJobs returns how many of the selected jobs an action would change.
func (v *visitor) countAffectedJobs(ctx context.Context, action *jobAction, selection control.JobSelection) (int,
	error) {
	selection.DryRun = true
	_, selectedCount, err := v.applyActionToSelections(ctx, action, selection)
	return selectedCount, err
}

// bulkPreviewView is the page that shows which jobs an action on several jobs would change. The page itself changes
// nothing.
var bulkPreviewView = &pageView{templateName: "bulk", navEntry: "jobs", fillPage: fillBulkPreviewPage}

// fillBulkPreviewPage fills the page bulkPreviewView.
func fillBulkPreviewPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	q := u.Query()
	vb, sel, f, err := parseSelection(q)
	if err != nil {
		return err
	}
	p.Title, p.CLICommand = strings.TrimSuffix(vb.Label, "…"), "queuectl "+vb.Name+" ID… --dry-run"
	n, err := v.countAffectedJobs(ctx, vb, sel)
	if err != nil {
		return err
	}
	sample := []control.Job{}
	if len(sel.IDs) == 0 {
		params := f.listParams()
		params.States, params.PageSize = sel.States, maxPreviewRows
		list, err := v.client.ListJobs(ctx, params)
		if err != nil {
			return err
		}
		sample = list.Jobs
	}
	for _, id := range sel.IDs[:min(len(sel.IDs), maxPreviewRows)] {
		d, err := v.client.ShowJob(ctx, control.JobShowParams{ID: control.JobID(id), HideEnv: true})
		if err != nil {
			return err
		}
		sample = append(sample, d.Job)
	}
	again := q.Has("n")
	q.Del("n")
	p.Content = bulkPreviewData{actionPreview: actionPreview{p.Title, int64(n), int64(max(0, len(sel.IDs)-n)), again,
		sample},
		AcceptedStates: strings.Join(vb.acceptedStateNames(), ", "), Fields: q, BackPath: f.listPath()}
	return nil
}

// actionPreview is the data that the pages bulkPreviewView and deadPreviewView have in common.
type actionPreview struct {
	Label           string // name of the action
	AffectedCount   int64  // number of jobs that the action would change
	UnaffectedCount int64  // number of selected jobs that the action would not change
	JobsChanged     bool   // the jobs have changed since the user last saw the preview
	Jobs            []control.Job
}

// bulkPreviewData is the data of the page bulkPreviewView.
type bulkPreviewData struct {
	actionPreview
	AcceptedStates string     // names of the states that the action accepts
	Fields         url.Values // hidden fields of the form
	BackPath       string     // path of the list of jobs, to which the page links
}

// handleBulkAction applies an action to the jobs that a preview has shown. If more jobs match the filter now than the
// preview showed, it changes nothing and sends the browser to a new preview.
func handleBulkAction(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	vb, sel, f, err := parseSelection(r.PostForm)
	if err != nil {
		return "", err
	}
	if shown := r.PostFormValue("n"); len(sel.IDs) == 0 {
		n, err := strconv.Atoi(shown)
		if err != nil {
			return "", queue.InvalidFieldError("n", "the form does not say how many jobs the preview showed (%q); open the "+
				"preview "+
				"again", queue.ClipForMessage(shown))
		}
		now, err := v.countAffectedJobs(ctx, vb, sel)
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
	changedCount, _, err := v.applyActionToSelections(ctx, vb, sel)
	if err != nil {
		return "", err
	}
	if len(sel.IDs) == 1 && vb.Name != "rm" {
		return jobPath(sel.IDs[0]), nil
	}
	q := f.Query()
	q.Set("did", vb.Name)
	q.Set("n", strconv.Itoa(changedCount))
	return "/jobs?" + q.Encode(), nil
}

// errUnknownDeathCause is the error for a cause of death (see deathCause) that none of the newest dead jobs has.
var errUnknownDeathCause = queue.Errorf(queue.CodeNotFound,
	"none of the newest %d dead jobs has this command and error; list all dead jobs: queuectl dlq list", maxDeadJobs)

// findChangeableDeadJobs returns the dead jobs with the given cause that the visitor may change. It also returns the
// number of dead jobs with this cause that the visitor may not change.
func (v *visitor) findChangeableDeadJobs(
	ctx context.Context, p *page, cause deathCause,
) (changeable []control.Job, unchangeableCount int, err error) {
	jobs, _, err := v.listDeadJobs(ctx, cause)
	for _, j := range jobs {
		switch {
		case !cause.matches(j.deathCause):
		case p.Owns(j.Job):
			changeable = append(changeable, j.Job)
		default:
			unchangeableCount++
		}
	}
	if err == nil && len(changeable)+unchangeableCount == 0 {
		err = errUnknownDeathCause
	}
	return changeable, unchangeableCount, err
}

// deadPreviewView is the page that shows which dead jobs the action retry or rm would change. The page itself changes
// nothing.
var deadPreviewView = &pageView{templateName: "dead_action", navEntry: "dead", cliCommand: "queuectl rm ID… --dry-run",
	fillPage: fillDeadPreviewPage}

// fillDeadPreviewPage fills the page deadPreviewView.
func fillDeadPreviewPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	vb, err := findDeadJobsAction(u)
	if err != nil {
		return err
	}
	p.Title = strings.TrimSuffix(vb.Label, "…")
	if vb.Name == "retry" {
		p.CLICommand = "queuectl dlq retry ID… --dry-run"
	}
	c := parseDeathCause(u.Query().Get)
	jobs, others, err := v.findChangeableDeadJobs(ctx, p, c)
	if err != nil {
		return err
	}
	p.Content = deadPreviewData{actionPreview{p.Title, int64(len(jobs)), int64(others), u.Query().Has("again"),
		jobs[:min(len(jobs), maxPreviewRows)]}, vb.Name, c, jobListDigest(jobs)}
	return nil
}

// deadPreviewData is the data of the page deadPreviewView.
type deadPreviewData struct {
	actionPreview
	Verb       string // name of the action in requests
	Cause      deathCause
	JobsDigest string // digest of the previewed jobs; see jobListDigest
}

// jobListDigest returns a hash that identifies a list of jobs. handleDeadJobsAction uses it to notice that the list has
// changed.
func jobListDigest(jobs []control.Job) string {
	sum := sha256.New()
	for _, j := range jobs {
		fmt.Fprintf(sum, "%d %s\n", j.Seq, j.ID)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// findDeadJobsAction returns the action in the path of a request. Only retry and rm are valid.
func findDeadJobsAction(u *url.URL) (*jobAction, error) {
	name := strings.TrimPrefix(u.Path, "/dead/")
	if name != "retry" && name != "rm" {
		return nil, pageNotFoundError(u.Path)
	}
	return findJobAction(name)
}

// handleDeadJobsAction applies an action to the dead jobs with one cause, or to one of these jobs. Before it removes
// jobs, it checks that they are the jobs that the preview has shown. If they are not, it sends the browser to a new
// preview.
func handleDeadJobsAction(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	vb, err := findDeadJobsAction(r.URL)
	if err != nil {
		return "", err
	}
	p := page{Token: v.formToken}
	if err := v.setUserAndRight(ctx, &p); err != nil {
		return "", err
	}
	c := parseDeathCause(r.PostFormValue)
	jobs, _, err := v.findChangeableDeadJobs(ctx, &p, c)
	if err != nil {
		return "", err
	}
	var ids control.JobIDs
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	one := false
	if vb.Name == "retry" {
		params := control.DeadJobRetryParams{}
		if text := strings.TrimSpace(r.PostFormValue("timeout")); text != "" {
			d, err := queue.ParseDuration(text)
			if err != nil {
				return "", queue.InvalidFieldError("timeout", "%v", err)
			}
			params.NewTimeout = new(control.Duration(d))
		}
		vb = &jobAction{Name: vb.Name, applyToJobs: func(_ control.ActionAPI, ctx context.Context,
			p control.JobSelection) (control.BulkResult, error) {
			params.IDs = p.IDs
			return v.client.RetryDeadJobs(ctx, params)
		}}
		if one = r.PostFormValue("n") == "1"; one {
			ids = ids[:min(len(ids), 1)]
		}
	} else if r.PostFormValue("shown") != jobListDigest(jobs) {
		return c.Path(r.URL.Path) + "&again=", nil
	}
	var selections []control.JobSelection
	for part := range slices.Chunk(ids, control.MaxJobsPerSelection) {
		selections = append(selections, control.JobSelection{IDs: part})
	}
	changedCount, _, err := v.applyActionToSelections(ctx, vb, selections...)
	if err != nil {
		return "", err
	}
	if one && len(ids) == 1 {
		return jobPath(ids[0]), nil
	}
	return "/dead?" + url.Values{"did": {vb.Name}, "n": {strconv.Itoa(changedCount)}}.Encode(), nil
}

// handleScaleWorkers handles a form that sets the number of workers.
func handleScaleWorkers(ctx context.Context, v *visitor, r *http.Request) (string, error) {
	n, err := strconv.Atoi(r.PostFormValue("n"))
	if err != nil {
		return "", invalidValue("n", r.PostFormValue("n"),
			"is not a number of workers; give a whole number from 0 to 4096")
	}
	_, err = v.client.ScaleWorkers(ctx, control.WorkerScaleParams{TargetWorkers: n})
	return "/workers", err
}

// handleQueueAction handles a form that pauses or resumes a queue.
func handleQueueAction(ctx context.Context, v *visitor, r *http.Request) (redirectPath string, err error) {
	name := r.PostFormValue("queue")
	switch verb := r.PostFormValue("verb"); verb {
	case "pause":
		_, err = v.client.PauseQueues(ctx, control.QueuePauseParams{Name: name, Reason: r.PostFormValue("reason")})
	case "resume":
		_, err = v.client.ResumeQueues(ctx, control.QueueResumeParams{Name: name})
	default:
		err = invalidValue("verb", verb, "is not an action; use pause or resume")
	}
	return "/", err
}

// handleScheduleAction handles a form that pauses, resumes or runs a schedule.
func handleScheduleAction(ctx context.Context, v *visitor, r *http.Request) (redirectPath string, err error) {
	name := control.ScheduleNameParams{Name: r.PostFormValue("schedule")}
	switch verb := r.PostFormValue("verb"); verb {
	case "pause":
		_, err = v.client.PauseSchedule(ctx, name)
	case "resume":
		_, err = v.client.ResumeSchedule(ctx, name)
	case "run":
		var enqueued control.EnqueueResult
		if enqueued, err = v.client.RunScheduleNow(ctx, name); err == nil {
			return jobPath(enqueued.JobID), nil
		}
	default:
		err = invalidValue("verb", verb, "is not an action; use pause, resume or run")
	}
	return "/schedules", err
}
