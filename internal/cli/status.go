package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/connect"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

func statusVerb(a *App) *cobra.Command {
	var check, verbose, watch bool
	cmd := NewCommand("status", "Show the queue's health, and running, next and failed jobs",
		NoArgs, func(ctx context.Context, _ []string) error {
			if check && watch {
				return fault.Usagef("--check: cannot be combined with --watch; use one of them")
			}
			if watch {
				return a.RunUntilStdoutReaderGone(ctx, func(ctx context.Context) error {
					return a.redrawOnChanges(ctx, func() error {
						return a.printStatus(ctx, statusOptions{verbose: verbose, redrawsOnChange: true})
					})
				})
			}
			return a.printStatus(ctx, statusOptions{healthOnly: check, verbose: verbose,
				showServiceLine: !verbose})
		})
	f := cmd.Flags()
	f.BoolVar(&check, "check", false, "print only the health; exit code: 0 ok, 1 degraded, 2 failing")
	f.BoolVar(&verbose, "verbose", false, "also show the service, its database, socket and version")
	f.BoolVar(&watch, "watch", false, "keep running and print again after each change")
	return cmd
}

// statusOptions selects what printStatus prints.
type statusOptions struct {
	healthOnly      bool // print only the health of the queue
	verbose         bool // also print details of the service
	redrawsOnChange bool // the command prints the status again after each change
	showServiceLine bool // print a line that names the service
}

// printStatus prints the state of the queue. If o.healthOnly is set, it prints only the health of the queue,
// and sets the exit code according to the health.
func (a *App) printStatus(ctx context.Context, o statusOptions) error {
	err := a.WithReadOnlyClient(ctx, o.redrawsOnChange, func(c *control.Client) error {
		if o.healthOnly || a.WantsJSON() {
			st, err := c.Status(ctx, control.NoParams{})
			switch {
			case err != nil:
				return err
			case o.healthOnly && strings.HasPrefix(st.Health, "failing"):
				a.ExitCode = 2
			case o.healthOnly && st.Health != "ok":
				a.ExitCode = 1
			}
			if a.WantsJSON() {
				return a.PrintJSON(st)
			}
			if len(st.PausedQueues) > 0 {
				a.PrintMessage("%s: %s; resume a queue with: queuectl queue resume NAME", present.PausedQueuesText(&st),
					strings.Join(st.PausedQueues, ", "))
			}
			return a.Println(a.EscapeForStdout(st.Health))
		}
		rows := a.rowsPerScreenSection()
		screen, err := c.ReadOverviewScreen(ctx, control.OverviewScreenParams{JobsPerSection: rows})
		if err != nil {
			return err
		}
		p := &screenPrinter{App: a, ScreenFormatter: present.ScreenFormatter{Screen: &screen, CurrentTime: time.Now()},
			printsTime: o.redrawsOnChange}
		if st := &screen.Status; st.ServiceKind != "" && o.showServiceLine {
			p.serviceLine = "Service: " + a.EscapeForStdout(present.DescribeService(st.ServiceKind, st.SocketPath))
		}
		if err := p.print(); err != nil || !o.verbose {
			return err
		}
		return a.printServiceDetails(&screen.Status)
	})
	if o.healthOnly && err == error(connect.ErrNoQueue) {
		return errHealthWithoutQueue
	}
	return err
}

// serviceKindDescriptions describes each kind of service for users.
var serviceKindDescriptions = map[string]string{"own": "own (one user's, not the machine's)",
	"system":    "system (the machine's)",
	"directory": "directory (serves one queue, chosen with --dir)"}

// printServiceDetails prints the details of the service, its database and its socket.
func (a *App) printServiceDetails(st *control.Status) error {
	service := fmt.Sprintf("version %s, pid %d, started %s", st.Version, st.PID, present.LocalTimeText(st.StartedAt))
	if st.PID == 0 {
		service = "not running"
	}
	oldest := "nothing waiting"
	if st.OldestReadySince != 0 {
		oldest = "waiting since " + present.LocalTimeText(st.OldestReadySince)
	}
	lines := [][2]string{
		{"Workers", fmt.Sprintf("%d (%d busy, %d idle)", st.Workers.Total, st.Workers.Busy, st.Workers.Idle)},
		{"Oldest", oldest}, {"Enqueued", fmt.Sprintf("%d in total", st.JobsEverEnqueued)},
		{"Finished", present.Plural(st.ThroughputPerMinute, "attempt") + " in the last minute"},
		{"Database", fmt.Sprintf("%s, %s; job output %s", cmp.Or(st.StoreLocation, st.StateDir),
			present.SizeText(st.DatabaseBytes),
			present.SizeText(st.OutputBytes))}, {"Your jobs", present.ByteUsageText(st.CallerStoredBytes, st.MaxBytesPerUser) +
			" for input and output"}, {"Socket", st.SocketPath},
		{"Service", cmp.Or(serviceKindDescriptions[st.ServiceKind], st.ServiceKind)}, {"Process", service},
		{"Client", Version},
		{"Health", st.Health},
	}
	a.Println("")
	return a.PrintNameValuePairs(10, lines)
}

// screenNonJobLines is the number of lines on the screen that are not rows of jobs. The other constants bound the
// number of rows in each section of the screen, or set it.
const (
	screenNonJobLines      = 12
	minSectionRows         = 2
	nonTerminalSectionRows = 10 // rows in each part if the output is not a terminal
	maxSectionRows         = 100
)

// rowsPerScreenSection returns how many rows to request for each section of the screen.
func (a *App) rowsPerScreenSection() int {
	height := term.TerminalLines(a.Stdout)
	if height == 0 {
		return nonTerminalSectionRows
	}
	return min(max(height-screenNonJobLines, minSectionRows), maxSectionRows)
}

// colourStateSign colours a table cell that begins with the sign of a state. If colourWholeCell is true, it colours the
// whole cell, otherwise only the sign.
func (a *App) colourStateSign(cell string, colourWholeCell bool) string {
	sign := present.LeadingStateSign(cell)
	if colourWholeCell {
		return a.Coloured(cell, sign.ColourCode)
	}
	return a.Coloured(sign.Symbol, sign.ColourCode) + cell[len(sign.Symbol):]
}

// screenPrinter prints the status screen.
type screenPrinter struct {
	*App
	present.ScreenFormatter

	printsTime  bool   // print a line with the time above the screen; for a screen that is printed repeatedly
	serviceLine string // line that names the service; "" to omit it
}

// screenSection is a part of the screen, such as the running jobs. It has one row for each job.
type screenSection struct {
	headings       []string
	rows           [][]string
	hiddenRows     int64  // number of jobs of this section that have no row
	hiddenRowsText string // text after hiddenRows, for example which command lists these jobs

	footerLines []string // lines below the rows
}

func (p *screenPrinter) print() error {
	st := &p.Screen.Status
	terminal := term.IsTerminal(p.Stdout)
	if !terminal { // the output has no fixed height and uses one form, because scripts may read it
		for _, s := range queue.States() {
			p.Println(fmt.Sprintf("%-10s %d", s, st.Jobs[s.String()]))
		}
		p.Println("")
	}
	above := []string{p.statusLine()}
	if st.RerankingInProgress {
		above = append(above, "a setting that affects the order of jobs has changed, so the service is sorting "+
			"the waiting jobs again")
	}
	if st.MaxBytesPerUser > 0 && st.CallerStoredBytes >= st.MaxBytesPerUser-st.MaxBytesPerUser/10 {
		above = append(above, "your storage: "+present.ByteUsageText(st.CallerStoredBytes, st.MaxBytesPerUser)+
			"; remove completed jobs with: queuectl rm --state done")
	}
	for _, u := range st.UsersNearQuota {
		above = append(above, "user "+p.EscapeForStdout(u.User)+
			" is close to the storage limit (setting max_bytes_per_user): "+present.SizeText(u.StoredBytes)+" used")
	}
	parts, gap := p.sections(), "\n"
	var counts []string
	if terminal {
		counts = append(counts, present.StatusJobCountsText(st))
	}
	if p.serviceLine != "" {
		counts = append(counts, p.serviceLine)
	}
	if height, width := term.TerminalLines(p.Stdout), term.TerminalColumns(p.Stdout); height > 0 {
		if height <= maxCompactScreenLines {
			gap = ""
		}
		shortenHiddenRowsText(parts, width)
		above, counts = termtext.WrapLines(width, above...), termtext.WrapLines(width, counts...)
		height -= len(above) + len(counts) + 2*len(gap) + 1 // 1 line is for the shell prompt
		if p.printsTime {
			height-- // 1 line is for the time
		}
		fitSectionHeights(parts, height)
	}
	err := p.Println(strings.Join(above, "\n"))
	below := gap != "" // print an empty line above the first section with rows
	for _, part := range parts {
		if len(part.rows) == 0 {
			continue
		}
		if below {
			p.Println("")
		}
		below, err = false, p.printSection(&part)
	}
	if len(counts) > 0 {
		err = p.Println(gap + strings.Join(counts, "\n"))
	}
	return err
}

// maxPausedQueueLines is the maximum number of paused queues that the screen names.
const maxPausedQueueLines = 3

// maxCompactScreenLines is the maximum height, in lines, of a terminal for which the screen is printed without empty
// lines.
const maxCompactScreenLines = 12

// shortenHiddenRowsText shortens the line about hidden rows if it is wider than the window. If the line suggests
// two commands, shortenHiddenRowsText keeps only the first one.
func shortenHiddenRowsText(sections []screenSection, maxColumns int) {
	for i := range sections {
		if first, _, two := strings.Cut(sections[i].hiddenRowsText, termtext.TextForLocale(" · ")); two &&
			len("  100000 more")+termtext.DisplayWidth(sections[i].hiddenRowsText) > maxColumns {
			sections[i].hiddenRowsText = first
		}
	}
}

func (p *screenPrinter) printSection(section *screenSection) error {
	paint := func(column int, cell string) string {
		if column == 0 {
			cell = p.colourStateSign(cell, false)
		}
		return cell
	}
	err := p.PrintColouredTable(section.headings, section.rows, paint)
	if section.hiddenRows > 0 && section.hiddenRowsText != "" {
		err = p.Println(fmt.Sprintf("  %d more%s", section.hiddenRows, section.hiddenRowsText))
	}
	for _, note := range section.footerLines {
		err = p.Println("  " + p.EscapeForStdout(note))
	}
	return err
}

// statusLine returns the status line: the health of the queue and its most important facts.
func (p *screenPrinter) statusLine() string {
	level, text := present.HealthText(&p.Screen.Status)
	return p.Coloured(level, present.HealthColourCode(level)) + p.EscapeForStdout(text)
}

// sections returns the sections of the screen.
func (p *screenPrinter) sections() []screenSection {
	s := p.Screen
	count := func(states ...queue.State) (n int64) {
		for _, state := range states {
			n += s.Status.Jobs[state.String()]
		}
		return n
	}
	running := screenSection{headings: []string{"RUNNING", "QUEUE", "NODE", "FOR", "TYPICAL", "COMMAND", "LAST LINE"}}
	explained := false
	for _, j := range s.Running {
		last := cmp.Or(j.LastLine, queue.ValueOr(j.Progress, control.JobProgress{}).Text)
		running.rows = append(running.rows, []string{present.JobIDWithStateSign(&j.Job), j.Queue, j.Node,
			p.RunTimeText(&j.Job), present.TypicalRuntimeOrDash(&j.Job), present.JobTitle(&j.Job), last})
		explained = explained || j.Progress != nil
	}
	if explained {
		// Put the percentage in the last column, without a heading, so that a narrow window keeps it.
		running.headings = append(running.headings, "")
		for i := range running.rows {
			running.rows[i] = append(running.rows[i], present.ProgressPercentText(&s.Running[i].Job))
		}
	}
	running.hiddenRows, running.hiddenRowsText = count(queue.Processing)-int64(len(running.rows)), ": queuectl ps"
	next := screenSection{headings: []string{"UP NEXT", "QUEUE", "WHEN", "COMMAND"}}
	for _, list := range [][]control.Job{s.Ready, s.Delayed, s.HeldOrBlocked} {
		for _, j := range list {
			next.rows = append(next.rows, []string{present.JobIDWithStateSign(&j), j.Queue,
				p.StartOrWaitText(&j), present.JobTitle(&j)})
		}
	}
	for _, q := range s.Paused[:min(len(s.Paused), maxPausedQueueLines)] {
		next.footerLines = append(next.footerLines, fmt.Sprintf("queue %s is %s; %s", q.Queue, present.QueuePauseText(&q),
			present.WaitingJobsText(present.PlainNumberText(q.Waiting))))
	}
	next.hiddenRows, next.hiddenRowsText = count(queue.Pending, queue.Failed, queue.Held,
		queue.Blocked)-int64(len(next.rows)),
		": queuectl list -s waiting"
	failed := screenSection{headings: []string{"FAILED", "ATTEMPTS", "WHEN", "COMMAND", "WHY"}}
	for _, j := range s.Dead {
		failed.rows = append(failed.rows, []string{present.JobIDWithStateSign(&j.Job), present.AttemptsText(&j.Job),
			p.AgoText(j.FinishedAt), present.JobTitle(&j.Job), p.FailureReason(&j)})
	}
	failed.hiddenRows, failed.hiddenRowsText = count(queue.Dead)-int64(len(failed.rows)),
		termtext.TextForLocale(": queuectl list --failed · run again: queuectl retry --failed")
	done := screenSection{headings: []string{"FINISHED", "RAN", "WHEN", "COMMAND"}}
	for _, j := range s.Done {
		done.rows = append(done.rows, []string{present.JobIDWithStateSign(&j),
			present.DashIfEmpty(present.DurationText(j.RunTimeMS)), p.AgoText(j.FinishedAt),
			present.JobTitle(&j)})
	}
	running.headings, running.rows = present.DropUninformativeColumns(running.headings, running.rows)
	next.headings, next.rows = present.DropUninformativeColumns(next.headings, next.rows)
	return []screenSection{running, next, failed, done}
}

// fitSectionHeights removes rows until all sections together have at most maxLines lines. It removes one row at a time,
// always from the longest section. If the sections do not fit even with one row each, it removes the last sections.
func fitSectionHeights(sections []screenSection, maxLines int) {
	lines := func() (n int) {
		for i := range sections {
			if len(sections[i].rows) > 0 {
				n += 1 + len(sections[i].rows) + len(sections[i].footerLines)
				if sections[i].hiddenRows > 0 && sections[i].hiddenRowsText != "" {
					n++
				}
			}
		}
		return n
	}
	for lines() > maxLines {
		longest := 0
		for i := range sections {
			if len(sections[i].rows) >= len(sections[longest].rows) {
				longest = i
			}
		}
		one := &sections[longest]
		if len(one.rows) <= 1 {
			last := len(sections) - 1
			for last > 0 && len(sections[last].rows) == 0 {
				last--
			}
			if last == 0 {
				return
			}
			sections[last] = screenSection{}
			continue
		}
		one.rows = one.rows[:len(one.rows)-1]
		one.hiddenRows++
	}
}

// PrintDoctorFinding prints one finding of "queuectl doctor".
func (a *App) PrintDoctorFinding(f *control.Finding) error {
	level := f.Level
	if level != "ok" {
		level = strings.ToUpper(level)
	}
	text := f.Message
	if f.Advice != "" {
		text += "\n" + f.Advice
	}
	return a.Println(fmt.Sprintf("%-7s  %-11s  %s", level, f.CheckName,
		termtext.IndentAfterFirstLine(a.EscapeForStdout(text), 22)))
}
