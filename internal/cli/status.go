package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func statusVerb(a *App) *cobra.Command {
	var check, verbose, watch bool
	cmd := &cobra.Command{
		Use: "status", Short: "Show the queue's health, and running, next and failed jobs", Args: Exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check && watch {
				return Usage("--check: cannot be combined with --watch; use one of them")
			}
			a.missingIsEmpty = !check
			if watch {
				return a.whileRead(cmd.Context(), func(ctx context.Context) error {
					return a.watch(ctx, func() error { return a.status(ctx, statusOptions{verbose: verbose, watched: true}) })
				})
			}
			return a.status(cmd.Context(), statusOptions{check: check, verbose: verbose, service: !verbose})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "print only the health; exit code: 0 ok, 1 degraded, 2 failing")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "also show the service, its database, socket and version")
	cmd.Flags().BoolVar(&watch, "watch", false, "keep running and print again after each change")
	return cmd
}

// statusOptions select what status prints.
type statusOptions struct {
	check   bool // print only the health of the queue
	verbose bool // also print details of the service
	watched bool // the screen will be printed again after each change
	service bool // print a line that names the service
}

// status prints the state of the queue or, with --check, only its health, which also sets the exit
// code.
func (a *App) status(ctx context.Context, o statusOptions) error {
	c, err := a.readerUnless(ctx, o.watched)
	if o.check && err == error(errNoQueue) {
		return errNothingToCheck
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if o.check || a.Structured() {
		st, err := c.Status(ctx, control.Nothing{})
		switch {
		case err != nil:
			return err
		case o.check && strings.HasPrefix(st.Health, "failing"):
			a.Exit = 2
		case o.check && st.Health != "ok":
			a.Exit = 1
		}
		if a.Structured() {
			return a.PrintJSON(st)
		}
		return a.Println(a.Clean(a.Out, st.Health))
	}
	rows := a.screenRows()
	screen, err := c.Screen(ctx, control.ScreenRows{Rows: rows})
	if errors.Is(err, queue.ErrUnsupported) { // the service is older and does not know this request
		screen.Status, err = c.Status(ctx, control.Nothing{})
	}
	if err != nil {
		return err
	}
	p := &screenPrinter{a: a, text: ScreenText{Screen: &screen, Now: time.Now()}, watched: o.watched}
	if st := &screen.Status; st.Service != "" && o.service {
		p.service = "Service: " + a.Clean(a.Out, Answering(st.Service, st.Socket))
	}
	if err := p.print(rows); err != nil {
		return err
	}
	if !o.verbose {
		return nil
	}
	return a.statusDetails(&screen.Status)
}

// statusDetails prints the details of the service, its database and its socket.
func (a *App) statusDetails(st *control.Status) error {
	service := fmt.Sprintf("version %s, pid %d, started %s", st.Version, st.PID, local(st.Started))
	if st.PID == 0 {
		service = "not running"
	}
	oldest := "nothing waiting"
	if st.Oldest != 0 {
		oldest = "waiting since " + local(st.Oldest)
	}
	lines := [][2]string{
		{"Workers", fmt.Sprintf("%d (%d busy, %d idle)", st.Workers.Total, st.Workers.Busy, st.Workers.Idle)},
		{"Oldest", oldest}, {"Enqueued", fmt.Sprintf("%d in total", st.Enqueued)}, {"Finished", plural(st.Throughput, "attempt") + " in the last minute"},
		{"Database", fmt.Sprintf("%s, %s; job output %s", cmp.Or(st.Store, st.Database), size(st.Bytes), size(st.Outputs))}, {"Your jobs", used(st.UserBytes, st.MaxBytesUser)}, {"Socket", st.Socket},
		{"Service", st.Service}, {"Process", service}, {"Client", Version}, {"Health", st.Health},
	}
	if err := a.Println(""); err != nil {
		return err
	}
	return a.rows(10, lines)
}

// used formats how many bytes are used and how many may be used. If the parameter most is 0, there
// is no limit.
func used(n, most int64) string {
	if most == 0 {
		return size(n) + " used"
	}
	return size(n) + " of " + size(most) + " used"
}

// These constants are numbers of lines: screenFrame is how many lines of the screen show no job.
// The others bound the number of jobs in each part of the screen.
const (
	screenFrame = 12
	leastRows   = 2
	plainRows   = 10 // the number of jobs in each part if the output is not a terminal
	mostRows    = 100
)

// screenRows returns how many rows to request for each part of the screen.
func (a *App) screenRows() int {
	height := lineCount(a.Out)
	if height == 0 {
		return plainRows
	}
	return min(max(height-screenFrame, leastRows), mostRows)
}

// lineCount returns the number of lines of a terminal, or 0 if to is not a terminal.
func lineCount(to *os.File) int {
	if !IsTerminal(to) {
		return 0
	}
	if _, h, err := term.GetSize(int(to.Fd())); err == nil && h > 0 {
		return min(h, mostHeight)
	}
	return 24
}

// stateSign holds how a state is displayed: a symbol, for terminals without colours, and a colour
// code.
type stateSign struct{ sign, colour string }

// signOf returns the sign and colour of a state. The sign is ASCII if the locale requires it.
func signOf(state string) stateSign {
	sign := stateSign{}
	switch stateOf(state) {
	case queue.Blocked:
		sign = stateSign{"◇", ""}
	case queue.Held:
		sign = stateSign{"‖", ""}
	case queue.Pending:
		sign = stateSign{"○", ""}
	case queue.Failed:
		sign = stateSign{"↻", "33"}
	case queue.Processing:
		sign = stateSign{"▶", "34"}
	case queue.Completed:
		sign = stateSign{"✓", "32"}
	case queue.Dead:
		sign = stateSign{"✗", "31"}
	case queue.Cancelled:
		sign = stateSign{"–", ""}
	}
	sign.sign = Sign(sign.sign)
	return sign
}

// coloured returns a text in a colour if standard output is a terminal and NO_COLOR is not set.
func (o *Output) coloured(text, colour string) string {
	if colour == "" || !IsTerminal(o.Out) || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + uncolour
}

// marked returns a job's id after the sign of its state.
func marked(j *control.Job) string {
	s := signOf(j.State)
	if j.PausedAt != 0 {
		s = signOf(queue.Held.String())
	}
	return s.sign + " " + j.ID
}

// signed colours a cell that begins with the sign of a state. If all is true, it colours the whole
// cell, otherwise only the sign.
func (a *App) signed(cell string, all bool) string {
	sign := leadingSign(cell)
	if all {
		return a.coloured(cell, sign.colour)
	}
	return a.coloured(sign.sign, sign.colour) + cell[len(sign.sign):]
}

// leadingSign returns the sign of a state that a cell begins with. The sign is empty if it begins
// with none.
func leadingSign(cell string) stateSign {
	for _, state := range queue.States() {
		if s := signOf(state.String()); strings.HasPrefix(cell, s.sign) {
			return s
		}
	}
	return stateSign{}
}

// screenPrinter prints the screen.
type screenPrinter struct {
	a    *App
	text ScreenText

	watched bool   // the screen is printed repeatedly, with a line above it that shows the time
	service string // line that names the service; "" to omit it
}

// section is a part of the screen: its rows, and the line that says where to find the
// rest.
type section struct {
	header    []string
	rows      [][]string
	more      int64 // number of jobs that are not in rows
	emptyText string

	notes []string // lines to print below the rows
}

func (p *screenPrinter) print(rows int) error {
	st := &p.text.Screen.Status
	terminal := IsTerminal(p.a.Out)
	if !terminal { // scripts read the output, so its form must not change
		for _, s := range queue.States() {
			if err := p.a.Println(fmt.Sprintf("%-10s %d", s, st.Jobs[s.String()])); err != nil {
				return err
			}
		}
		if err := p.a.Println(""); err != nil {
			return err
		}
	}
	above := []string{p.verdict()}
	if st.Reranking {
		above = append(above, "a setting that affects the order of jobs has changed, so the service is sorting the waiting jobs again")
	}
	if st.MaxBytesUser > 0 && st.UserBytes >= st.MaxBytesUser-st.MaxBytesUser/10 {
		above = append(above, "your storage: "+used(st.UserBytes, st.MaxBytesUser)+"; remove completed jobs with: queuectl rm --state done")
	}
	for _, u := range st.NearQuota {
		above = append(above, "user "+p.a.Clean(p.a.Out, u.User)+" is close to the storage limit (setting max_bytes_per_user): "+size(u.Bytes)+" used")
	}
	parts, counts, gap := p.parts(), []string{p.service}, "\n"
	if terminal {
		counts = []string{countsOf(&p.text.Screen.Status), p.service}
	}
	if p.service == "" {
		counts = counts[:len(counts)-1]
	}
	if height, width := lineCount(p.a.Out), columnCount(p.a.Out); height > 0 {
		if height <= lowWindow {
			gap = ""
		}
		narrow(parts, width)
		above, counts = Fold(width, above...), Fold(width, counts...)
		height -= len(above) + len(counts) + 2*len(gap) + 1 // one line is left for the shell prompt
		if p.watched {
			height-- // one line shows the time
		}
		fitParts(parts, height)
	}
	if err := p.a.Println(strings.Join(above, "\n")); err != nil {
		return err
	}
	for i := range parts {
		shown := &parts[i]
		if len(shown.rows) == 0 {
			continue
		}
		if i == 0 || !slices.ContainsFunc(parts[:i], func(q section) bool { return len(q.rows) > 0 }) {
			if _, err := io.WriteString(p.a.out(), gap); err != nil {
				return err
			}
		}
		if err := p.printPart(shown); err != nil {
			return err
		}
	}
	if len(counts) == 0 {
		return nil
	}
	return p.a.Println(gap + strings.Join(counts, "\n"))
}

// maxNotes is how many paused queues the screen names.
const maxNotes = 3

// lowWindow is the height up to which the screen has no empty lines.
const lowWindow = 12

// narrow shortens the line about a part's remaining jobs if it is wider than the window. Of the two
// commands that the line suggests, narrow keeps the first.
func narrow(parts []section, width int) {
	for i := range parts {
		if first, _, two := strings.Cut(parts[i].emptyText, Sign(" · ")); two &&
			len("  100000 more")+Width(parts[i].emptyText) > width {
			parts[i].emptyText = first
		}
	}
}

func (p *screenPrinter) printPart(part *section) error {
	paint := func(column int, cell string) string {
		if column == 0 {
			cell = p.a.signed(cell, false)
		}
		return cell
	}
	if err := p.a.paintedTable(part.header, part.rows, paint); err != nil {
		return err
	}
	if part.more > 0 && part.emptyText != "" {
		if err := p.a.Println(fmt.Sprintf("  %d more%s", part.more, part.emptyText)); err != nil {
			return err
		}
	}
	for _, note := range part.notes {
		if err := p.a.Println("  " + p.a.Clean(p.a.Out, note)); err != nil {
			return err
		}
	}
	return nil
}

// verdict returns the status line: the health of the queue and its most important facts.
func (p *screenPrinter) verdict() string {
	level, text := verdictOf(&p.text.Screen.Status)
	return p.a.coloured(level, levelColour(level)) + p.a.Clean(p.a.Out, text)
}

// levelColour returns the colour code of a health level.
func levelColour(level string) string {
	switch level {
	case "ok":
		return "32"
	case "degraded":
		return "33"
	case "failing":
		return "31"
	}
	return ""
}

// verdictOf returns the health of the queue (ok, degraded or failing) and the text that follows it
// on the status line.
func verdictOf(st *control.Status) (level, text string) {
	if st.Health != "ok" {
		level, text, _ = strings.Cut(oneLine(st.Health), ":")
		return level, ":" + text
	}
	var b strings.Builder
	separator := Sign(" · ")
	if st.PID == 0 {
		b.WriteString(separator + "service not running")
	} else {
		fmt.Fprintf(&b, "%s%d of %s busy", separator, st.Workers.Busy, workers(st.Workers.Total))
		if st.Node != "" {
			fmt.Fprintf(&b, " on %s", st.Node)
		}
	}
	if n := st.Jobs[queue.Pending.String()] + st.Jobs[queue.Failed.String()] + st.Jobs[queue.Blocked.String()]; n > 0 {
		b.WriteString(separator + waitText(n))
	} else {
		b.WriteString(separator + "nothing waiting")
	}
	if n := st.Jobs[queue.Held.String()]; n > 0 {
		fmt.Fprintf(&b, "%s%d held", separator, n)
	}
	switch n := st.Jobs[queue.Dead.String()]; {
	case n == 1:
		b.WriteString(separator + "1 dead job needs attention")
	case n > 1:
		fmt.Fprintf(&b, "%s%d dead jobs need attention", separator, n)
	}
	return "ok", b.String()
}

func waitText(n int64) string { return fmt.Sprintf("%d waiting", n) }

// countsOf returns the number of jobs in each state that has any, and how many attempts end per
// minute.
func countsOf(st *control.Status) string {
	var list []string
	for _, s := range queue.States() {
		if n := st.Jobs[s.String()]; n > 0 {
			list = append(list, fmt.Sprintf("%s %d", s, n))
		}
	}
	if len(list) == 0 {
		return "no jobs yet; enqueue the first with: queuectl enqueue 'echo hello'"
	}
	text := strings.Join(list, Sign(" · "))
	if n := st.Throughput; n > 0 {
		text += fmt.Sprintf("     %d/min", n)
	}
	return text
}

// parts returns the sections of the screen.
func (p *screenPrinter) parts() []section {
	s := p.text.Screen
	count := func(states ...queue.State) (n int64) {
		for _, state := range states {
			n += s.Status.Jobs[state.String()]
		}
		return n
	}
	running := section{header: []string{"RUNNING", "QUEUE", "NODE", "FOR", "TYPICAL", "COMMAND", "LAST LINE"}}
	explained := false
	for i := range s.Running {
		j := &s.Running[i]
		last := j.LastLine
		if last == "" && j.Progress != nil {
			last = j.Progress.Text
		}
		running.rows = append(running.rows, []string{marked(&j.Job), j.Queue, j.Node, p.text.Runs(&j.Job), typicalRun(&j.Job), Title(&j.Job), last})
		explained = explained || j.Progress != nil
	}
	// The percentage is the last column and has no heading, so that a narrow window keeps it.
	for i := range running.rows {
		if explained {
			running.rows[i] = append(running.rows[i], percent(&s.Running[i].Job))
		}
	}
	if explained {
		running.header = append(running.header, "")
	}
	running.more, running.emptyText = count(queue.Processing)-int64(len(running.rows)), ": queuectl ps"
	next := section{header: []string{"UP NEXT", "QUEUE", "WHEN", "COMMAND"}}
	for _, list := range [][]control.Job{s.Ready, s.Timed, s.Kept} {
		for i := range list {
			j := &list[i]
			next.rows = append(next.rows, []string{marked(j), j.Queue, p.text.Starts(j), Title(j)})
		}
	}
	for i := range s.Paused[:min(len(s.Paused), maxNotes)] {
		q := &s.Paused[i]
		next.notes = append(next.notes, fmt.Sprintf("queue %s is %s; %s", q.Queue, pauseText(q), waitText(q.Waiting)))
	}
	next.more, next.emptyText = count(queue.Pending, queue.Failed, queue.Held, queue.Blocked)-int64(len(next.rows)), ": queuectl list -s waiting"
	failed := section{header: []string{"FAILED", "ATTEMPTS", "WHEN", "COMMAND", "WHY"}}
	for i := range s.Dead {
		j := &s.Dead[i]
		failed.rows = append(failed.rows, []string{marked(&j.Job), AttemptsText(&j.Job), p.text.Ago(j.FinishedAt), Title(&j.Job), p.text.Why(j)})
	}
	failed.more, failed.emptyText = count(queue.Dead)-int64(len(failed.rows)), Sign(": queuectl list --failed · run again: queuectl retry --failed")
	done := section{header: []string{"FINISHED", "RAN", "WHEN", "COMMAND"}}
	for i := range s.Done {
		j := &s.Done[i]
		done.rows = append(done.rows, []string{marked(j), ranRoughly(j), p.text.Ago(j.FinishedAt), Title(j)})
	}
	running.header, running.rows = withoutPlain(running.header, running.rows)
	next.header, next.rows = withoutPlain(next.header, next.rows)
	return []section{running, next, failed, done}
}

// ranRoughly formats how long a job ran. It returns "-" if the job did not run.
func ranRoughly(j *control.Job) string {
	switch {
	case j.RunTimeMS == nil:
		return "-"
	case *j.RunTimeMS < 1000:
		return fmt.Sprintf("%dms", *j.RunTimeMS)
	}
	return Roughly(time.Duration(*j.RunTimeMS) * time.Millisecond)
}

// ageOf formats how long ago a time was.
func ageOf(t control.Time, now time.Time) string {
	return Roughly(max(0, now.Sub(queue.Millis(t).Time())).Truncate(time.Second))
}

// agoOf formats how long ago a time was, in words.
func agoOf(t control.Time, now time.Time) string {
	if now.Sub(queue.Millis(t).Time()) < time.Second {
		return "just now"
	}
	return ageOf(t, now) + " ago"
}

// fitParts removes rows until the parts take no more lines than the parameter most. The longest
// part loses a row first. If the parts do not fit even with one row each, fitParts removes the last
// parts.
func fitParts(parts []section, most int) {
	lines := func() (n int) {
		for i := range parts {
			if len(parts[i].rows) > 0 {
				n += 1 + len(parts[i].rows) + len(parts[i].notes)
				if parts[i].more > 0 && parts[i].emptyText != "" {
					n++
				}
			}
		}
		return n
	}
	for lines() > most {
		longest := 0
		for i := range parts {
			if len(parts[i].rows) >= len(parts[longest].rows) {
				longest = i
			}
		}
		one := &parts[longest]
		if len(one.rows) <= 1 {
			last := len(parts) - 1
			for last > 0 && len(parts[last].rows) == 0 {
				last--
			}
			if last == 0 {
				return
			}
			parts[last] = section{}
			continue
		}
		one.rows = one.rows[:len(one.rows)-1]
		one.more++
	}
}
