package dashboard

import (
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// This file groups dead jobs by the cause of death.
//
// Jobs with the same command and the same error form a group. If this results in more groups than the page shows, jobs
// with the same program and the same error form a group instead. For example, a batch that runs ffmpeg on 400 files may
// fail 400 times with exit code 1. That is one problem, and the page shows it as one group.

// These constants limit the work and the memory that the grouping takes, because users can choose commands and errors
// of any length.
const (
	maxDeadJobs          = 5000 // maximum number of dead jobs that are read, newest first
	maxShownDeathGroups  = 50   // maximum number of groups that are shown
	maxDeathErrorBytes   = 200  // maximum length of an error in bytes
	maxCauseCommandBytes = 256  // maximum length of a command or program in a cause, in bytes

	maxShownCommandBytes = 4 << 10 // maximum length of a command in a list of jobs, in bytes
)

// deathCauseParamNames contains the names of the parameters, in URLs and forms, that describe a cause of death.
var deathCauseParamNames = []string{"error", "command", "program"}

// deathCause is a cause of death of jobs: their error, and their command or their program. An empty field matches every
// job.
type deathCause struct{ Error, Command, Program string }

// deathCauseOf returns the cause of a job's death, with all three fields set.
func deathCauseOf(j *control.Job) deathCause {
	c := deathCause{Error: queue.ClipJSON(present.JobErrorText(j), maxDeathErrorBytes),
		Command: queue.ClipJSON(present.CommandOrHidden(j.Command), maxCauseCommandBytes)}
	words := strings.Fields(c.Command)
	if len(j.Argv) > 0 {
		words = []string{queue.ClipJSON(j.Argv[0], maxCauseCommandBytes)}
	}
	for len(words) > 1 && strings.Contains(words[0], "=") { // skip environment variables, such as A=1
		words = words[1:]
	}
	if len(words) > 0 {
		c.Program = words[0]
	}
	return c
}

// parseDeathCause returns the cause of death in the parameters of a URL or a form. paramValue returns the value
// of a parameter by its name.
func parseDeathCause(paramValue func(string) string) deathCause {
	return deathCause{paramValue("error"), paramValue("command"), paramValue("program")}
}

// MatchesAll reports whether the cause c matches every dead job.
func (c deathCause) MatchesAll() bool { return c == deathCause{} }

// CommandOrProgram returns the command of the cause. For jobs with different commands of the same program, it
// returns the program.
func (c deathCause) CommandOrProgram() string {
	if c.Command == "" && c.Program != "" {
		return c.Program + " …"
	}
	return c.Command
}

// Path returns the path of the given page, with the cause c as query parameters.
func (c deathCause) Path(page string) string {
	return page + "?" + nonEmptyParams(deathCauseParamNames, []*string{&c.Error, &c.Command, &c.Program}).Encode()
}

// matches reports whether c matches a job. jobCause is the cause of the job's death, with all fields set.
func (c deathCause) matches(jobCause deathCause) bool {
	return (c.Error == "" || c.Error == jobCause.Error) && (c.Command == "" || c.Command == jobCause.Command) &&
		(c.Program == "" || c.Program == jobCause.Program)
}

// deadJob is a dead job and the cause of its death.
type deadJob struct {
	control.Job
	deathCause deathCause
}

// deadJobGroup is a group of dead jobs with the same cause.
type deadJobGroup struct {
	deathCause
	Jobs            []deadJob    // newest first
	Queues          string       // names of the queues, separated by spaces
	FirstAt, LastAt control.Time // when the first and the last job of the group died
}

// listDeadJobs returns the newest dead jobs that the visitor may see, newest first, and whether there are more. Only
// the first maxListRows jobs that causeNeedingCommands matches contain their commands, because commands may be large.
func (v *visitor) listDeadJobs(ctx context.Context, causeNeedingCommands deathCause) (jobs []deadJob, hasMore bool,
	err error) {
	withCommand := 0
	for params := (control.DeadJobListParams{}); ; {
		page, err := v.client.ListDeadJobs(ctx, params)
		if err != nil {
			return nil, false, err
		}
		for _, j := range page.Jobs {
			d := deadJob{j, deathCauseOf(&j)}
			if causeNeedingCommands.matches(d.deathCause) && withCommand < maxListRows {
				withCommand++
				d.Command, d.Argv = queue.ClipJSON(j.Command, maxShownCommandBytes), nil
			} else {
				d.Job = control.Job{ID: j.ID, Seq: j.Seq, User: j.User, Submitter: j.Submitter, Queue: j.Queue,
					FinishedAt: j.FinishedAt}
			}
			jobs = append(jobs, d)
		}
		if page.NextCursor == nil || len(jobs) >= maxDeadJobs {
			return jobs, page.NextCursor != nil, nil
		}
		params.Cursor = *page.NextCursor
	}
}

// groupDeadJobs groups dead jobs by the cause of their death. The largest group comes first.
func groupDeadJobs(jobs []deadJob) []*deadJobGroup {
	groups := groupDeadJobsByCause(jobs, func(c *deathCause) { c.Program = "" })
	if len(groups) > maxShownDeathGroups {
		groups = groupDeadJobsByCause(jobs, func(c *deathCause) { c.Command = "" })
	}
	slices.SortStableFunc(groups, func(a, b *deadJobGroup) int { return len(b.Jobs) - len(a.Jobs) })
	return groups
}

// groupDeadJobsByCause groups dead jobs: jobs form a group if their causes are equal after clearField has cleared a
// field.
func groupDeadJobsByCause(jobs []deadJob, clearField func(*deathCause)) (groups []*deadJobGroup) {
	found := map[deathCause]*deadJobGroup{}
	for _, j := range jobs {
		cause := j.deathCause
		clearField(&cause)
		g := found[cause]
		if g == nil {
			g = &deadJobGroup{deathCause: cause, LastAt: j.FinishedAt}
			found[cause], groups = g, append(groups, g)
		}
		g.FirstAt, g.Jobs = j.FinishedAt, append(g.Jobs, j)
		if !slices.Contains(strings.Fields(g.Queues), j.Queue) && len(g.Queues) < 64 {
			g.Queues = strings.TrimSpace(g.Queues + " " + j.Queue)
		}
	}
	return groups
}

// fillDeadPage fills the page of dead jobs. It shows the groups or, if the URL contains a cause, the jobs with
// this cause.
func fillDeadPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	q := u.Query()
	opened := parseDeathCause(q.Get)
	jobs, more, err := v.listDeadJobs(ctx, opened)
	groups := groupDeadJobs(jobs)
	main := deadJobsPageData{GroupCount: int64(len(groups)), Groups: groups[:min(len(groups), maxShownDeathGroups)],
		More:           more,
		MaxGroupedJobs: maxDeadJobs, Cause: opened}
	if n, err := strconv.ParseInt(q.Get("n"), 10, 64); err == nil && q.Get("did") != "" {
		main.LastAction, main.LastActionCount = q.Get("did"), n
	}
	if !opened.MatchesAll() {
		jobs = slices.DeleteFunc(jobs, func(j deadJob) bool { return !opened.matches(j.deathCause) })
		main.CauseJobCount, main.Jobs = int64(len(jobs)), make([]control.Job, min(len(jobs), maxListRows))
		for i := range main.Jobs {
			main.Jobs[i] = jobs[i].Job
		}
	}
	p.Content = main
	return err
}

// deadJobsPageData is the data of the page that fillDeadPage fills.
type deadJobsPageData struct {
	GroupCount      int64 // number of groups
	Groups          []*deadJobGroup
	More            bool       // more than MaxGroupedJobs dead jobs exist
	MaxGroupedJobs  int64      // maximum number of dead jobs that are grouped
	LastAction      string     // name of the last action, for a message; "" if none
	LastActionCount int64      // number of jobs that this action has changed
	Cause           deathCause // cause that the page shows; zero if it shows all groups
	CauseJobCount   int64      // number of jobs with that cause
	Jobs            []control.Job
}
