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

// This file groups dead jobs by cause.
//
// Jobs with the same command and the same error form a group. If that makes more groups than the
// page shows, jobs with the same program and the same error form a group instead. For example, a
// batch that runs ffmpeg on 400 files may fail 400 times with exit code 1. That is one problem, so
// it is shown as one group.

// These constants limit the grouping, because the users who enqueue jobs choose the texts.
const (
	maxDead      = 5000 // maximum number of dead jobs that are read, newest first
	maxGroups    = 50   // maximum number of groups that are shown
	maxErrorText = 200  // maximum length of an error in bytes
	maxCauseText = 256  // maximum length of a command in the name of a cause, in bytes

	shownCommand = 4 << 10 // maximum length of a command in a row, in bytes
)

// causeFields contains the parameters of a URL or form that identify a cause.
var causeFields = []string{"error", "command", "program"}

// cause describes why jobs are dead. A field that is "" matches every value.
type cause struct{ Error, Command, Program string }

func causeOf(j *control.Job) cause {
	c := cause{Error: queue.ClipJSON(present.ErrorText(j), maxErrorText),
		Command: queue.ClipJSON(present.Command(j.Command), maxCauseText)}
	words := strings.Fields(c.Command)
	if len(j.Argv) > 0 {
		words = []string{queue.ClipJSON(j.Argv[0], maxCauseText)}
	}
	for len(words) > 1 && strings.Contains(words[0], "=") { // skip environment assignments before the program
		words = words[1:]
	}
	if len(words) > 0 {
		c.Program = words[0]
	}
	return c
}

// causeFrom reads a cause from the values of a URL or a form.
func causeFrom(get func(string) string) cause {
	return cause{get("error"), get("command"), get("program")}
}

// Any reports whether the cause matches every job.
func (c cause) Any() bool { return c == cause{} }

// What returns the command of the cause. If the commands differ, it returns the program.
func (c cause) What() string {
	if c.Command == "" && c.Program != "" {
		return c.Program + " …"
	}
	return c.Command
}

// Path returns the path of a page with the cause as parameters.
func (c cause) Path(page string) string {
	values := url.Values{}
	for i, text := range []string{c.Error, c.Command, c.Program} {
		if text != "" {
			values.Set(causeFields[i], text)
		}
	}
	return page + "?" + values.Encode()
}

// covers reports whether c matches full, which is the complete cause of one job.
func (c cause) covers(full cause) bool {
	return (c.Error == "" || c.Error == full.Error) && (c.Command == "" || c.Command == full.Command) &&
		(c.Program == "" || c.Program == full.Program)
}

// deadJob is a dead job and the cause of its death.
type deadJob struct {
	control.Job
	cause cause
}

// deadGroup holds the dead jobs with one cause.
type deadGroup struct {
	cause
	Jobs        []deadJob // newest first
	Queues      string
	First, Last control.Time
}

// deadJobs returns the newest dead jobs that the visitor may see, newest first. The result more
// says whether further dead jobs exist. Commands may be large, so deadJobs keeps only the commands
// of the first listRows jobs with the cause opened.
func (v *visitor) deadJobs(ctx context.Context, opened cause) (list []deadJob, more bool, err error) {
	withCommand := 0
	for params := (control.DLQList{}); ; {
		page, err := v.client.DLQList(ctx, params)
		if err != nil {
			return nil, false, err
		}
		for _, j := range page.Jobs {
			d := deadJob{j, causeOf(&j)}
			if opened.covers(d.cause) && withCommand < listRows {
				withCommand++
				d.Command, d.Argv = queue.ClipJSON(j.Command, shownCommand), nil
			} else {
				d.Job = control.Job{ID: j.ID, Seq: j.Seq, User: j.User, Submitter: j.Submitter, Queue: j.Queue,
					FinishedAt: j.FinishedAt}
			}
			list = append(list, d)
		}
		if page.Next == nil || len(list) >= maxDead {
			return list, page.Next != nil, nil
		}
		params.Cursor = *page.Next
	}
}

// groupDead groups dead jobs by cause, the largest group first.
func groupDead(jobs []deadJob) []*deadGroup {
	groups := groupBy(jobs, func(c cause) cause { return cause{Error: c.Error, Command: c.Command} })
	if len(groups) > maxGroups {
		groups = groupBy(jobs, func(c cause) cause { return cause{Error: c.Error, Program: c.Program} })
	}
	slices.SortStableFunc(groups, func(a, b *deadGroup) int { return len(b.Jobs) - len(a.Jobs) })
	return groups
}

func groupBy(jobs []deadJob, key func(cause) cause) (groups []*deadGroup) {
	found := map[cause]*deadGroup{}
	for _, j := range jobs {
		k := key(j.cause)
		g := found[k]
		if g == nil {
			g = &deadGroup{cause: k, Last: j.FinishedAt}
			found[k], groups = g, append(groups, g)
		}
		g.First, g.Jobs = j.FinishedAt, append(g.Jobs, j)
		if !slices.Contains(strings.Fields(g.Queues), j.Queue) && len(g.Queues) < 64 {
			g.Queues = strings.TrimSpace(g.Queues + " " + j.Queue)
		}
	}
	return groups
}

// dead fills the page of dead letters. If the URL contains a cause, it fills the page of the dead jobs
// with that cause.
func dead(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	q := u.Query()
	opened := causeFrom(q.Get)
	jobs, more, err := v.deadJobs(ctx, opened)
	groups := groupDead(jobs)
	main := deadData{Kinds: int64(len(groups)), Groups: groups[:min(len(groups), maxGroups)], More: more, Most: maxDead,
		Cause: opened}
	if n, err := strconv.ParseInt(q.Get("n"), 10, 64); err == nil && q.Get("did") != "" {
		main.Did, main.Done = q.Get("did"), n
	}
	if !opened.Any() {
		jobs = slices.DeleteFunc(jobs, func(j deadJob) bool { return !opened.covers(j.cause) })
		main.N, main.Jobs = int64(len(jobs)), make([]control.Job, min(len(jobs), listRows))
		for i := range main.Jobs {
			main.Jobs[i] = jobs[i].Job
		}
	}
	p.Main = main
	return err
}

// deadData is the data of the page of dead letters, or of the dead jobs with one cause.
type deadData struct {
	Kinds  int64 // number of groups
	Groups []*deadGroup
	More   bool   // more dead jobs exist than the newest Most
	Most   int64  // maximum number of dead jobs that are grouped
	Did    string // the action that was applied last; "" if none
	Done   int64  // number of jobs to which that action was applied
	Cause  cause  // cause of the jobs on this page; zero on the page of all groups
	N      int64  // number of jobs with that cause
	Jobs   []control.Job
}
