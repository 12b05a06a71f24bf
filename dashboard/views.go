package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// These constants are the maximum numbers of rows on the pages.
const (
	maxOverviewSectionRows = 10 // maximum number of jobs in each part of the overview
	maxListRows            = 50 // maximum number of jobs on a page of a list
	maxPreviewRows         = 5  // maximum number of jobs in a preview
)

// viewsByPath contains the view of each page, by URL path.
var viewsByPath = map[string]*pageView{
	"/{$}": {"overview", "overview", "", "queuectl status", fillOverviewPage,
		[]string{"verdict", "strip", "speed", "running", "waiting", "queues", "deads", "done"}, nil, 0},
	"/jobs": {"jobs", "jobs", "Jobs", "", fillJobsPage, []string{"tabs", "list"},
		append(slices.Clone(filterParamNames), "cursor", "did", "n"), 0},
	"/jobs/{id...}": {"job", "jobs", "", "", fillJobPage, []string{"head", "why", "deps", "attempts", "facts"},
		[]string{"id", "attempt"}, 0},
	"/dead": {"dead", "dead", "Dead letters", "queuectl dlq list", fillDeadPage, []string{"list"},
		append(slices.Clone(deathCauseParamNames), "did", "n"), expensivePageRefreshInterval},
	"/schedules": {"schedules", "schedules", "Schedules", "queuectl schedule list", fillSchedulesPage, []string{"list"},
		[]string{"cursor"}, expensivePageRefreshInterval},
	"/stats": {"stats", "stats", "Statistics", "", fillStatisticsPage, []string{"figures"}, []string{"since"},
		expensivePageRefreshInterval},
	"/workers": {"workers", "workers", "Workers", "queuectl worker list", fillWorkersPage, []string{"workers"}, nil, 0},
}

// expensivePageRefreshInterval is the minimum interval at which a browser updates a page that needs expensive
// queries.
const expensivePageRefreshInterval = 5 * time.Second

// fillOverviewPage fills the first page, which gives an overview of the queue.
func fillOverviewPage(ctx context.Context, v *visitor, _ *url.URL, p *page) error {
	screen, err := v.client.ReadOverviewScreen(ctx, control.OverviewScreenParams{JobsPerSection: maxOverviewSectionRows})
	if err != nil {
		return err
	}
	queues, err := v.client.ListQueues(ctx, control.QueueListParams{})
	if err != nil {
		return err
	}
	hour, err := v.client.ReadStats(ctx, control.StatsParams{Since: pastRangeStart(time.Hour), PeriodLength: "minute"})
	p.Status = &screen.Status
	kind, text := healthHeadline(&screen.Status)
	p.Title = text
	p.Content = overviewPageData{Screen: screen, Queues: queues.Queues, LastHour: drawPlot(&hour, time.Minute),
		VerdictKind: kind, Headline: text}
	return err
}

// overviewPageData is the data of the overview page.
type overviewPageData struct {
	Screen                control.OverviewScreen
	Queues                []control.QueueView
	LastHour              endedAttemptsPlot
	VerdictKind, Headline string // see healthHeadline
}

// healthHeadline returns the headline of the overview, and its kind: "ok", "attention", "degraded" or "failing".
func healthHeadline(st *control.Status) (kind, headline string) {
	kind, headline, _ = strings.Cut(st.Health, ": ")
	dead := st.Jobs[queue.Dead.String()]
	switch {
	case headline != "":
		return kind, headline
	case dead > 0:
		return "attention", present.DeadJobsText(dead, withCommas)
	}
	return kind, "All is well"
}

// fillJobsPage fills a page of the list of jobs that the URL's filter selects.
func fillJobsPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	q := u.Query()
	f, err := parseJobFilter(q)
	if err != nil {
		return err
	}
	p.CLICommand = f.cliCommand()
	params := f.listParams()
	params.PageSize, params.Cursor = maxListRows, q.Get("cursor")
	list, err := v.client.ListJobs(ctx, params)
	if err != nil {
		return err
	}
	main := jobsPageData{Jobs: list.Jobs, Filter: f, Tabs: f.stateTabs(p.Status)}
	if vb, err := findJobAction(q.Get("did")); err == nil {
		if n, err := strconv.ParseInt(q.Get("n"), 10, 64); err == nil {
			main.LastAction, main.LastActionCount = vb.Name, n
		}
	}
	if list.NextCursor != nil {
		next := f.Query()
		next.Set("cursor", *list.NextCursor)
		main.Next = "/jobs?" + next.Encode()
	}
	p.Content = main
	return nil
}

// jobsPageData is the data of a page of the list of jobs.
type jobsPageData struct {
	Jobs            []control.Job
	Filter          jobFilter
	Tabs            []stateTab
	LastAction      string // name of the action that was applied last; "" if none
	LastActionCount int64  // number of jobs to which the last action was applied
	Next            string // path of the next page; "" on the last page
}

// jobIDFromURL returns the id of the job that a page's URL names.
func jobIDFromURL(u *url.URL) control.JobID {
	if u.Path == "/job" {
		return control.JobID(u.Query().Get("id"))
	}
	return control.JobID(strings.TrimPrefix(u.Path, "/jobs/"))
}

// fillJobPage fills the page of one job.
func fillJobPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	id := jobIDFromURL(u)
	p.Title, p.CLICommand = string(id), "queuectl show "+string(id)
	d, err := v.client.ShowJob(ctx, control.JobShowParams{ID: id, HideEnv: true})
	if err != nil {
		return err
	}
	main := jobPageData{Job: d, MayReadOutput: !slices.Contains(d.HiddenParts, "command")}
	if present.ParseStateOrZero(d.State).IsWaiting() {
		why, err := v.client.ExplainWaiting(ctx, control.ExplainWaitingParams{ID: id})
		if err != nil {
			return err
		}
		main.Why = &why
	}
	tree, err := v.client.ReadDependencyTree(ctx, control.DependencyTreeParams{ID: id})
	if err != nil {
		return err
	}
	if len(tree.Dependencies) > 0 {
		main.DependencyTree = buildDependencyTree(&tree)
	}
	if main.MayReadOutput && len(d.History) > 0 {
		if text := u.Query().Get("attempt"); text != "" {
			if main.Attempt, err = strconv.Atoi(text); err != nil || main.Attempt < 1 {
				return invalidValue("attempt", text, "is not an attempt number; the first attempt is 1")
			}
		}
		if main.Lines, err = v.readLastLines(ctx, id, main.Attempt); err != nil {
			return err
		}
	}
	p.Content = main
	return nil
}

// jobPageData is the data of the page of one job.
type jobPageData struct {
	Job            control.JobDetail
	Why            *control.WaitingExplanation // nil if the job does not wait
	DependencyTree *dependencyTree             // nil if the job has neither dependencies nor dependants
	MayReadOutput  bool                        // the visitor may see the output
	Lines          []outputLine                // the output of the attempt
	Attempt        int                         // number of the attempt; 0 means the last one
}

// treeBranch is a job in a dependency tree, with the jobs that the page shows indented below it.
type treeBranch struct {
	control.DependencyTreeJob
	Condition string
	Children  []treeBranch
}

// dependencyTree contains the dependencies and the dependants of a job.
type dependencyTree struct {
	Dependencies, Dependants []treeBranch
	More                     bool // some branches were left out, because there are more than maxTreeBranches
}

// buildDependencyTree converts a graph of jobs to nested lists of branches. All lists together contain at most
// maxTreeBranches branches. If a job occurs several times, only its first occurrence has branches below it.
func buildDependencyTree(t *control.DependencyTree) *dependencyTree {
	result, remaining := &dependencyTree{}, maxTreeBranches
	nodes := map[int64]control.DependencyTreeJob{}
	for _, n := range t.Jobs {
		nodes[n.Seq] = n
	}
	seen := map[int64]bool{}
	var buildBranches func(seq int64, toParents bool, depth int) []treeBranch
	buildBranches = func(seq int64, toParents bool, depth int) (branches []treeBranch) {
		seen[seq] = true
		for _, e := range t.Dependencies {
			self, other := e.ParentSeq, e.ChildSeq
			if toParents {
				self, other = other, self
			}
			if self != seq {
				continue
			}
			if remaining == 0 {
				result.More = true
				break
			}
			remaining--
			b := treeBranch{DependencyTreeJob: nodes[other], Condition: e.Condition}
			if !seen[other] && depth < maxTreeDepth {
				b.Children = buildBranches(other, toParents, depth+1)
			}
			branches = append(branches, b)
		}
		return branches
	}
	root := t.Jobs[0].Seq
	result.Dependencies = buildBranches(root, true, 0)
	result.Dependants = buildBranches(root, false, 0)
	return result
}

// These constants limit a dependency tree on a page: its depth, and the total number of its branches.
const (
	maxTreeDepth    = 12
	maxTreeBranches = 200
)

// readLastLines returns the last lines of the output of a job's attempt. attempt is the number of the attempt; 0 means
// the last one.
func (v *visitor) readLastLines(ctx context.Context, id control.JobID, attempt int) (lines []outputLine, err error) {
	var o outputLineConverter
	n, bytes, dropped := maxInitialOutputLines, 0, false
	_, err = v.client.StreamOutput(ctx, control.JobOutputParams{ID: id, LastLineCount: &n, Attempt: attempt},
		func(p control.OutputPiece) error {
			for _, l := range o.convertPiece(&p) {
				if n := len(lines); n > 0 && lines[n-1].IsUnfinished {
					bytes -= lines[n-1].memoryBytes()
				}
				lines, bytes = appendOrReplaceLine(lines, l), bytes+l.memoryBytes()
				for len(lines) > maxInitialOutputLines || bytes > maxInitialOutputBytes {
					bytes -= lines[0].memoryBytes()
					lines, dropped = lines[1:], true
				}
			}
			return nil
		})
	if dropped {
		lines = slices.Insert(lines, 0, outputLine{Dropped: "earlier output: queuectl logs " + string(id)})
	}
	return lines, err
}

// These constants limit the output that a job's page contains when it is loaded: the number of lines, and
// their total size in bytes.
const (
	maxInitialOutputLines = 200
	maxInitialOutputBytes = 256 << 10
)

// fillSchedulesPage fills a page of the list of schedules.
func fillSchedulesPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	list, err := v.client.ListSchedules(ctx, control.ScheduleListParams{Cursor: u.Query().Get("cursor")})
	if err != nil {
		return err
	}
	var data schedulesPageData
	for _, s := range list.Schedules[:min(len(list.Schedules), maxListRows)] {
		d, err := v.client.ShowSchedule(ctx, control.ScheduleNameParams{Name: s.Name})
		if errors.Is(err, queue.ErrNotFound) {
			continue // the schedule was removed in the meantime
		}
		if err != nil {
			return err
		}
		data.Schedules = append(data.Schedules, d)
	}
	data.Next = present.EmptyIfNil(list.Next)
	if len(list.Schedules) > maxListRows {
		data.Next = list.Schedules[maxListRows-1].Name
	}
	p.Content = data
	return nil
}

// schedulesPageData is the data of a page of the list of schedules.
type schedulesPageData struct {
	Schedules []control.ScheduleDetail
	Next      string // cursor of the next page; "" on the last page
}

// statsRange is a time range of the statistics page. The graphs of the page divide the range into steps.
type statsRange struct {
	Name       string
	length     time.Duration
	stepUnit   string // name of the step length in the API: minute, hour or day
	stepLength time.Duration
}

// statsRanges contains the time ranges that the statistics page offers.
var statsRanges = []statsRange{{"1h", time.Hour, "minute", time.Minute}, {"24h", 24 * time.Hour, "hour", time.Hour},
	{"30d", 30 * 24 * time.Hour, "day", 24 * time.Hour}}

// pastRangeStart returns the start of a time range of the given duration that ends now.
func pastRangeStart(duration time.Duration) control.Time {
	return control.Time(time.Now().Add(-duration).UnixMilli())
}

// fillStatisticsPage fills the page with the statistics of each queue.
func fillStatisticsPage(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	chosen := statsRanges[1]
	if text := u.Query().Get("since"); text != "" {
		i := slices.IndexFunc(statsRanges, func(r statsRange) bool { return r.Name == text })
		if i < 0 {
			return invalidValue("since", text, "is not a period of this page (1h, 24h, 30d); for other periods: "+
				"queuectl stats --since "+queue.QuoteShellWord(queue.ClipForMessage(text)))
		}
		chosen = statsRanges[i]
	}
	p.CLICommand = "queuectl stats --since " + chosen.Name
	got, err := v.client.ReadStats(ctx, control.StatsParams{Since: pastRangeStart(chosen.length),
		PeriodLength: chosen.stepUnit})
	if err != nil {
		return err
	}
	p.Content = statisticsPageData{Range: chosen.Name, Ranges: statsRanges, Grain: chosen.stepUnit, Queues: got.Queues,
		Plot: drawPlot(&got, chosen.stepLength)}
	return nil
}

// statisticsPageData is the data of the statistics page.
type statisticsPageData struct {
	Range  string // name of the chosen time range
	Ranges []statsRange
	Grain  string // length of the graphs' steps: minute, hour or day
	Queues []control.QueueStats
	Plot   endedAttemptsPlot
}

// endedAttemptsPlot is a graph that shows how many attempts ended in each step of a time range.
type endedAttemptsPlot struct {
	EndedPath, FailedPath string // SVG paths in a box of plotWidth by plotHeight
	MaxPerStep, Total     int64  // highest number of ended attempts in one step, and in all steps together
	Failed                int64  // number of failed attempts, part of Total
	StartTime             control.Time
}

// These constants are the size of a graph in units of its SVG box.
const plotWidth, plotHeight = 480.0, 44.0

// drawPlot draws statistics as a graph with one bar for each step of the given length.
func drawPlot(s *control.Stats, stepLength time.Duration) (plot endedAttemptsPlot) {
	plot.StartTime = s.Since
	step := stepLength.Milliseconds()
	stepCount := max(1, (int64(s.Until-s.Since)+step-1)/step)
	ended := func(f *control.AttemptStatistics) int64 {
		return f.Completed + f.Failed + f.Dead + f.Cancelled + f.StoppedOrDeferred
	}
	for i := range s.Periods {
		f := &s.Periods[i].AttemptStatistics
		plot.MaxPerStep, plot.Total, plot.Failed = max(plot.MaxPerStep, ended(f)), plot.Total+ended(f),
			plot.Failed+f.Failed+f.Dead
	}
	wide := plotWidth / float64(stepCount)
	for i := range s.Periods {
		f := &s.Periods[i].AttemptStatistics
		at := wide * float64(int64(s.Periods[i].StartTime-s.Since)/step)
		bar := func(count int64) string {
			high := plotHeight * float64(count) / float64(max(plot.MaxPerStep, 1))
			return fmt.Sprintf("M%.1f %.1fV%.1fh%.1fV%.1f", at, plotHeight, plotHeight-high, wide*0.9, plotHeight)
		}
		if all := ended(f); all > 0 {
			plot.EndedPath += bar(all)
		}
		if bad := f.Failed + f.Dead; bad > 0 {
			plot.FailedPath += bar(bad)
		}
	}
	return plot
}

// fillWorkersPage fills the page of workers.
func fillWorkersPage(ctx context.Context, v *visitor, _ *url.URL, p *page) error {
	list, err := v.client.ListWorkers(ctx, control.NoParams{})
	p.Content = list.Workers
	return err
}
