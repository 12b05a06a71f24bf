package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// screenFrame is how many lines of the screen show no job. The other constants bound the number of jobs
// in each part of the screen.
const (
	screenFrame = 12
	leastRows   = 2
	plainRows   = 10 // number of jobs in each part if the output is not a terminal
	mostRows    = 100
)

// screenRows returns how many rows to request for each part of the screen.
func (a *App) screenRows() int {
	height := term.Lines(a.Stdout)
	if height == 0 {
		return plainRows
	}
	return min(max(height-screenFrame, leastRows), mostRows)
}

// signed colours a cell that begins with the sign of a state. If all is true, it colours the whole
// cell, otherwise only the sign.
func (a *App) signed(cell string, all bool) string {
	sign := present.LeadingSign(cell)
	if all {
		return a.Coloured(cell, sign.Colour)
	}
	return a.Coloured(sign.Sign, sign.Colour) + cell[len(sign.Sign):]
}

// screenPrinter prints the screen.
type screenPrinter struct {
	a    *App
	text present.ScreenText

	watched bool   // the screen is printed repeatedly, with a line above it that shows the time
	service string // line that names the service; "" to omit it
}

// section is a part of the screen: its rows, and the line about the jobs that have no row.
type section struct {
	header    []string
	rows      [][]string
	more      int64 // number of jobs that are not in rows
	emptyText string

	notes []string // lines to print below the rows
}

func (p *screenPrinter) print() error {
	st := &p.text.Screen.Status
	terminal := term.IsTerminal(p.a.Stdout)
	if !terminal { // scripts read the output, so keep its form
		for _, s := range queue.States() {
			p.a.Println(fmt.Sprintf("%-10s %d", s, st.Jobs[s.String()]))
		}
		p.a.Println("")
	}
	above := []string{p.verdict()}
	if st.Reranking {
		above = append(above, "a setting that affects the order of jobs has changed, so the service is sorting "+
			"the waiting jobs again")
	}
	if st.MaxBytesUser > 0 && st.UserBytes >= st.MaxBytesUser-st.MaxBytesUser/10 {
		above = append(above, "your storage: "+present.Used(st.UserBytes, st.MaxBytesUser)+
			"; remove completed jobs with: queuectl rm --state done")
	}
	for _, u := range st.NearQuota {
		above = append(above, "user "+p.a.Clean(p.a.Stdout, u.User)+
			" is close to the storage limit (setting max_bytes_per_user): "+present.Size(u.Bytes)+" used")
	}
	parts, gap := p.parts(), "\n"
	var counts []string
	if terminal {
		counts = append(counts, present.CountsOf(st))
	}
	if p.service != "" {
		counts = append(counts, p.service)
	}
	if height, width := term.Lines(p.a.Stdout), term.Columns(p.a.Stdout); height > 0 {
		if height <= lowWindow {
			gap = ""
		}
		narrow(parts, width)
		above, counts = termtext.WrapLines(width, above...), termtext.WrapLines(width, counts...)
		height -= len(above) + len(counts) + 2*len(gap) + 1 // leave one line for the shell prompt
		if p.watched {
			height-- // leave one line for the time
		}
		fitParts(parts, height)
	}
	err := p.a.Println(strings.Join(above, "\n"))
	below := gap != "" // an empty line precedes the first part
	for i := range parts {
		if len(parts[i].rows) == 0 {
			continue
		}
		if below {
			p.a.Println("")
		}
		below, err = false, p.printPart(&parts[i])
	}
	if len(counts) > 0 {
		err = p.a.Println(gap + strings.Join(counts, "\n"))
	}
	return err
}

// maxNotes is the highest number of paused queues that the screen names.
const maxNotes = 3

// lowWindow is the height up to which the screen has no empty lines.
const lowWindow = 12

// narrow shortens the line about the jobs that have no row if it is wider than the window. Of the two
// commands that the line suggests, narrow keeps the first.
func narrow(parts []section, width int) {
	for i := range parts {
		if first, _, two := strings.Cut(parts[i].emptyText, termtext.LocaleText(" · ")); two &&
			len("  100000 more")+termtext.Width(parts[i].emptyText) > width {
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
	err := p.a.PaintedTable(part.header, part.rows, paint)
	if part.more > 0 && part.emptyText != "" {
		err = p.a.Println(fmt.Sprintf("  %d more%s", part.more, part.emptyText))
	}
	for _, note := range part.notes {
		err = p.a.Println("  " + p.a.Clean(p.a.Stdout, note))
	}
	return err
}

// verdict returns the status line: the health of the queue and its most important facts.
func (p *screenPrinter) verdict() string {
	level, text := present.VerdictOf(&p.text.Screen.Status)
	return p.a.Coloured(level, present.LevelColour(level)) + p.a.Clean(p.a.Stdout, text)
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
		last := cmp.Or(j.LastLine, queue.ValueOr(j.Progress, control.JobProgress{}).Text)
		running.rows = append(running.rows, []string{present.WithSign(&j.Job), j.Queue, j.Node, p.text.Runs(&j.Job),
			present.TypicalRun(&j.Job), present.Title(&j.Job), last})
		explained = explained || j.Progress != nil
	}
	if explained {
		// Put the percentage in the last column, without a heading, so that a narrow window keeps it.
		running.header = append(running.header, "")
		for i := range running.rows {
			running.rows[i] = append(running.rows[i], present.Percent(&s.Running[i].Job))
		}
	}
	running.more, running.emptyText = count(queue.Processing)-int64(len(running.rows)), ": queuectl ps"
	next := section{header: []string{"UP NEXT", "QUEUE", "WHEN", "COMMAND"}}
	for _, list := range [][]control.Job{s.Ready, s.Timed, s.HeldOrBlocked} {
		for i := range list {
			j := &list[i]
			next.rows = append(next.rows, []string{present.WithSign(j), j.Queue, p.text.Starts(j), present.Title(j)})
		}
	}
	for i := range s.Paused[:min(len(s.Paused), maxNotes)] {
		q := &s.Paused[i]
		next.notes = append(next.notes, fmt.Sprintf("queue %s is %s; %s", q.Queue, present.QueuePause(q),
			present.WaitText(present.Plain(q.Waiting))))
	}
	next.more, next.emptyText = count(queue.Pending, queue.Failed, queue.Held, queue.Blocked)-int64(len(next.rows)),
		": queuectl list -s waiting"
	failed := section{header: []string{"FAILED", "ATTEMPTS", "WHEN", "COMMAND", "WHY"}}
	for i := range s.Dead {
		j := &s.Dead[i]
		failed.rows = append(failed.rows, []string{present.WithSign(&j.Job), present.AttemptsText(&j.Job),
			p.text.Ago(j.FinishedAt), present.Title(&j.Job), p.text.Why(j)})
	}
	failed.more, failed.emptyText = count(queue.Dead)-int64(len(failed.rows)),
		termtext.LocaleText(": queuectl list --failed · run again: queuectl retry --failed")
	done := section{header: []string{"FINISHED", "RAN", "WHEN", "COMMAND"}}
	for i := range s.Done {
		j := &s.Done[i]
		done.rows = append(done.rows, []string{present.WithSign(j), present.DashText(present.Took(j.RunTimeMS)), p.text.Ago(j.FinishedAt),
			present.Title(j)})
	}
	running.header, running.rows = present.DropPlainColumns(running.header, running.rows)
	next.header, next.rows = present.DropPlainColumns(next.header, next.rows)
	return []section{running, next, failed, done}
}

// fitParts removes rows until the parts take no more lines than the parameter most. It first removes a
// row of the longest part. If the parts do not fit even with one row each, fitParts removes the last
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
