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
	overviewRows = 10 // maximum number of jobs in each part of the overview
	listRows     = 50 // maximum number of jobs on a page of a list
	sampleRows   = 5  // maximum number of jobs in a preview
)

// views contains the pages by path.
var views = map[string]*view{
	"/{$}": {"overview", "overview", "", "queuectl status", overview, []string{"verdict", "strip", "speed", "running",
		"waiting", "queues", "deads", "done"}, nil, 0},
	"/jobs": {"jobs", "jobs", "Jobs", "", jobs, []string{"tabs", "list"},
		append(slices.Clone(filterNames), "cursor", "did", "n"), 0},
	"/jobs/{id...}": {"job", "jobs", "", "", job, []string{"head", "why", "deps", "attempts", "facts"},
		[]string{"id", "attempt"}, 0},
	"/dead": {"dead", "dead", "Dead letters", "queuectl dlq list", dead, []string{"list"},
		append(slices.Clone(causeFields), "did", "n"), costlyInterval},
	"/schedules": {"schedules", "schedules", "Schedules", "queuectl schedule list", schedules, []string{"list"},
		[]string{"cursor"}, costlyInterval},
	"/stats":   {"stats", "stats", "Statistics", "", statistics, []string{"figures"}, []string{"since"}, costlyInterval},
	"/workers": {"workers", "workers", "Workers", "queuectl worker list", workers, []string{"workers"}, nil, 0},
}

// costlyInterval is the update interval of pages with expensive queries.
const costlyInterval = 5 * time.Second

// overview fills the first page, which summarises the queue.
func overview(ctx context.Context, v *visitor, _ *url.URL, p *page) error {
	screen, err := v.client.Screen(ctx, control.ScreenRows{Rows: overviewRows})
	if err != nil {
		return err
	}
	queues, err := v.client.QueueList(ctx, control.Queues{})
	if err != nil {
		return err
	}
	hour, err := v.client.Stats(ctx, control.StatsParams{Since: periodStart(time.Hour), Grain: "minute"})
	p.Status = &screen.Status
	kind, text := verdict(&screen.Status)
	p.Title = text
	p.Main = overviewData{Screen: screen, Queues: queues.Queues, Hour: drawPlot(&hour, time.Minute), Kind: kind,
		Headline: text}
	return err
}

// overviewData is the data of the overview.
type overviewData struct {
	Screen         control.Screen
	Queues         []control.QueueView
	Hour           plot
	Kind, Headline string // the results of verdict
}

// verdict returns the headline of the overview, and its kind: ok, attention, degraded or failing.
func verdict(st *control.Status) (kind, headline string) {
	kind, headline, _ = strings.Cut(st.Health, ": ")
	dead := st.Jobs[queue.Dead.String()]
	switch {
	case headline != "":
		return kind, headline
	case dead > 0:
		return "attention", present.DeadText(dead, withCommas)
	}
	return kind, "All is well"
}

// jobs fills a page of the list of jobs.
func jobs(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	q := u.Query()
	f, err := filterOf(q)
	if err != nil {
		return err
	}
	p.CLI = f.command()
	params := f.list()
	params.Limit, params.Cursor = listRows, q.Get("cursor")
	list, err := v.client.List(ctx, params)
	if err != nil {
		return err
	}
	main := jobsData{Jobs: list.Jobs, Filter: f, Tabs: f.tabs(p.Status)}
	if vb, err := verbNamed(q.Get("did")); err == nil {
		if n, err := strconv.ParseInt(q.Get("n"), 10, 64); err == nil {
			main.Did, main.Done = vb.Name, n
		}
	}
	if list.Next != nil {
		next := f.Values()
		next.Set("cursor", *list.Next)
		main.Next = "/jobs?" + next.Encode()
	}
	p.Main = main
	return nil
}

// jobsData is the data of a page of the list of jobs.
type jobsData struct {
	Jobs   []control.Job
	Filter filter
	Tabs   []tab
	Did    string // the action that was applied last; "" if none
	Done   int64  // number of jobs to which that action was applied
	Next   string // path of the next page; "" on the last page
}

// jobOf returns the id of the job in a page's URL.
func jobOf(u *url.URL) control.Name {
	if u.Path == "/job" {
		return control.Name(u.Query().Get("id"))
	}
	return control.Name(strings.TrimPrefix(u.Path, "/jobs/"))
}

// job fills the page of one job.
func job(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	id := jobOf(u)
	p.Title, p.CLI = string(id), "queuectl show "+string(id)
	d, err := v.client.Show(ctx, control.Show{ID: id, WithoutEnv: true})
	if err != nil {
		return err
	}
	main := jobData{Job: d, Output: !slices.Contains(d.Hidden, "command")}
	if present.StateOf(d.State).Waiting() {
		why, err := v.client.Why(ctx, control.WhyParams{ID: id})
		if err != nil {
			return err
		}
		main.Why = &why
	}
	tree, err := v.client.Tree(ctx, control.Tree{ID: id})
	if err != nil {
		return err
	}
	if len(tree.Edges) > 0 {
		main.Deps = layoutTree(&tree)
	}
	if main.Output && len(d.History) > 0 {
		if text := u.Query().Get("attempt"); text != "" {
			if main.Attempt, err = strconv.Atoi(text); err != nil || main.Attempt < 1 {
				return queue.Invalid("attempt", "%q is not an attempt number; the first attempt is 1", queue.Clip(text))
			}
		}
		if main.Lines, err = v.lines(ctx, id, main.Attempt); err != nil {
			return err
		}
	}
	p.Main = main
	return nil
}

// jobData is the data of the page of one job.
type jobData struct {
	Job     control.JobDetail
	Why     *control.Why // nil if the job is not waiting
	Deps    *tree        // nil if the job has neither dependencies nor dependants
	Output  bool         // the visitor may see the output
	Lines   []line       // the output of the attempt
	Attempt int          // number of the attempt; 0 means the last one
}

// branch is a job in a dependency tree together with the jobs below it.
type branch struct {
	control.TreeNode
	How   string
	Below []branch
}

// tree contains the dependencies and the dependants of a job.
type tree struct {
	Above, Below []branch
	More         bool // some branches are not drawn
}

// layoutTree converts a tree to nested lists with at most maxBranches branches. If a job occurs
// several times, only its first occurrence has the jobs below it.
func layoutTree(t *control.TreeView) *tree {
	result, remaining := &tree{}, maxBranches
	nodes := map[int64]control.TreeNode{}
	for _, n := range t.Nodes {
		nodes[n.Seq] = n
	}
	seen := map[int64]bool{}
	var follow func(seq int64, toParents bool, depth int) []branch
	follow = func(seq int64, toParents bool, depth int) (list []branch) {
		seen[seq] = true
		for _, e := range t.Edges {
			self, other := e.Parent, e.Child
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
			b := branch{TreeNode: nodes[other], How: e.Condition}
			if !seen[other] && depth < maxDepth {
				b.Below = follow(other, toParents, depth+1)
			}
			list = append(list, b)
		}
		return list
	}
	root := t.Nodes[0].Seq
	result.Above = follow(root, true, 0)
	result.Below = follow(root, false, 0)
	return result
}

// These constants are the maximum depth of a drawn tree and the maximum number of its branches.
const (
	maxDepth    = 12
	maxBranches = 200
)

// lines returns the last output lines of an attempt of a job. Attempt 0 means the last attempt.
func (v *visitor) lines(ctx context.Context, id control.Name, attempt int) (list []line, err error) {
	var o outputLines
	n, bytes, dropped := shownLines, 0, false
	_, err = v.client.Logs(ctx, control.Logs{ID: id, N: &n, Attempt: attempt}, func(p control.Piece) error {
		for _, l := range o.next(&p) {
			if n := len(list); n > 0 && list[n-1].Part {
				bytes -= list[n-1].size()
			}
			list, bytes = add(list, l), bytes+l.size()
			for len(list) > shownLines || bytes > shownBytes {
				bytes -= list[0].size()
				list, dropped = list[1:], true
			}
		}
		return nil
	})
	if dropped {
		list = slices.Insert(list, 0, line{Dropped: "earlier output: queuectl logs " + string(id)})
	}
	return list, err
}

// These constants are the maximum numbers of output lines and of their bytes in a new page.
const (
	shownLines = 200
	shownBytes = 256 << 10
)

// schedules fills the page of recurring jobs.
func schedules(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	list, err := v.client.ScheduleList(ctx, control.ScheduleList{Cursor: u.Query().Get("cursor")})
	if err != nil {
		return err
	}
	var main schedulesData
	for _, s := range list.Schedules[:min(len(list.Schedules), listRows)] {
		d, err := v.client.ScheduleShow(ctx, control.ScheduleName{Name: s.Name})
		if errors.Is(err, queue.ErrNotFound) {
			continue // the schedule was removed after the list was read
		}
		if err != nil {
			return err
		}
		main.Schedules = append(main.Schedules, d)
	}
	main.Next = present.Empty(list.Next)
	if len(list.Schedules) > listRows {
		main.Next = list.Schedules[listRows-1].Name
	}
	p.Main = main
	return nil
}

// schedulesData is the data of a page of the list of schedules.
type schedulesData struct {
	Schedules []control.ScheduleDetail
	Next      string // cursor of the next page; "" on the last page
}

// span is a period of the statistics page and the length of the steps of its graphs.
type span struct {
	Name  string
	span  time.Duration
	grain string
	step  time.Duration
}

// ranges contains the periods that the statistics page offers.
var ranges = []span{{"1h", time.Hour, "minute", time.Minute}, {"24h", 24 * time.Hour, "hour", time.Hour},
	{"30d", 30 * 24 * time.Hour, "day", 24 * time.Hour}}

// periodStart returns the start of a period that ends now.
func periodStart(d time.Duration) control.Time { return control.Time(time.Now().Add(-d).UnixMilli()) }

// statistics fills the page of statistics by queue.
func statistics(ctx context.Context, v *visitor, u *url.URL, p *page) error {
	chosen := ranges[1]
	if text := u.Query().Get("since"); text != "" {
		i := slices.IndexFunc(ranges, func(r span) bool { return r.Name == text })
		if i < 0 {
			return queue.Invalid("since", "%q is not a period of this page (1h, 24h, 30d); for other periods: "+
				"queuectl stats --since %s", queue.Clip(text), queue.ShellWord(queue.Clip(text)))
		}
		chosen = ranges[i]
	}
	p.CLI = "queuectl stats --since " + chosen.Name
	got, err := v.client.Stats(ctx, control.StatsParams{Since: periodStart(chosen.span), Grain: chosen.grain})
	if err != nil {
		return err
	}
	p.Main = statisticsData{Range: chosen.Name, Ranges: ranges, By: chosen.grain, Queues: got.Queues,
		Plot: drawPlot(&got, chosen.step)}
	return nil
}

// statisticsData is the data of the statistics page.
type statisticsData struct {
	Range  string // name of the chosen period
	Ranges []span
	By     string // length of the steps: minute, hour or day
	Queues []control.QueueStats
	Plot   plot
}

// plot is a graph of the number of attempts that ended in each step of a period.
type plot struct {
	Ended, Bad string // SVG paths in a box of plotWidth by plotHeight
	Most, All  int64  // largest number in one period, and total number
	Failed     int64  // number of failed attempts, part of All
	From       control.Time
}

const plotWidth, plotHeight = 480.0, 44.0

// drawPlot draws statistics as a graph with one bar per step.
func drawPlot(s *control.Stats, step time.Duration) (g plot) {
	g.From = s.Since
	n := int64(1)
	if s.Until > s.Since {
		n = max(1, (int64(s.Until-s.Since)+step.Milliseconds()-1)/step.Milliseconds())
	}
	ended := func(f *control.Figures) int64 { return f.Completed + f.Failed + f.Dead + f.Cancelled + f.Returned }
	for i := range s.Periods {
		f := &s.Periods[i].Figures
		g.Most, g.All, g.Failed = max(g.Most, ended(f)), g.All+ended(f), g.Failed+f.Failed+f.Dead
	}
	wide := plotWidth / float64(n)
	for i := range s.Periods {
		f := &s.Periods[i].Figures
		at := wide * float64(int64(s.Periods[i].StartTime-s.Since)/step.Milliseconds())
		bar := func(count int64) string {
			high := plotHeight * float64(count) / float64(max(g.Most, 1))
			return fmt.Sprintf("M%.1f %.1fV%.1fh%.1fV%.1f", at, plotHeight, plotHeight-high, wide*0.9, plotHeight)
		}
		if all := ended(f); all > 0 {
			g.Ended += bar(all)
		}
		if bad := f.Failed + f.Dead; bad > 0 {
			g.Bad += bar(bad)
		}
	}
	return g
}

// workers fills the page of workers.
func workers(ctx context.Context, v *visitor, _ *url.URL, p *page) error {
	list, err := v.client.WorkerList(ctx, control.Nothing{})
	p.Main = list.Workers
	return err
}
