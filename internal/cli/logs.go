package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

func logsVerb(a *App) *cobra.Command {
	var p control.Logs
	var lines int
	var stamps bool
	var s selection
	cmd := &cobra.Command{
		Use: "logs ID… | --state STATE …", Short: "Print the output of jobs", ValidArgsFunction: a.completeIDs(),
		RunE: func(cmd *cobra.Command, ids []string) error {
			a.lists = !p.Follow
			if cmd.Flags().Changed("attempt") && p.Attempt < 1 {
				return Usage("--attempt: the first one is 1; without it the last one is printed")
			}
			if cmd.Flags().Changed("lines") {
				p.N = &lines
			}
			if len(ids) == 0 {
				c, err := a.readerUnless(cmd.Context(), p.Follow)
				if err != nil {
					return err
				}
				defer c.Close()
				selected, err := s.resolved(cmd, c, nil)
				if err != nil {
					return err
				}
				for i := range selected {
					ids = append(ids, selected[i].ID)
				}
				if len(ids) == 0 {
					a.sayNone()
				}
			} else if _, err := s.of(cmd, ids); err != nil {
				return err
			}
			return a.whileRead(cmd.Context(), func(ctx context.Context) error { return a.logs(ctx, p, once(ids), stamps) })
		},
	}
	s.add(cmd, "s")
	f := cmd.Flags()
	f.BoolVarP(&p.Follow, "follow", "f", false, "go on until the jobs have ended")
	f.IntVar(&p.Attempt, "attempt", 0, "of attempt `N` (default: the last one)")
	f.BoolVar(&p.Stdout, "stdout", false, "standard output only")
	f.BoolVar(&p.Stderr, "stderr", false, "standard error only")
	f.IntVarP(&lines, "lines", "n", 0, "the last `N` lines only")
	instantVar(f, &p.Since, "since", "printed since: a `TIME`, or a duration ago")
	instantVar(f, &p.Until, "until", "printed before: a `TIME`, or a duration ago")
	f.BoolVar(&stamps, "timestamps", false, "put the time before each line")
	return cmd
}

// logs prints the output of jobs, those of several one after another or, when
// followed, as they come, each line with its job's id.
func (a *App) logs(ctx context.Context, p control.Logs, ids []string, stamps bool) (err error) {
	c, err := a.readerUnless(ctx, p.Follow)
	if err != nil {
		return err
	}
	defer c.Close()
	width := 0
	for _, id := range ids {
		width = max(width, len(id))
	}
	var printing sync.Mutex
	var list *array
	if a.JSON && !a.JSONL {
		list = &array{a.Out, "["}
		defer func() { err = errors.Join(err, list.end()) }()
	}
	one := func(id string) error {
		prefix := ""
		if len(ids) > 1 {
			prefix = fmt.Sprintf("%-*s | ", width, id)
		}
		out := newLogPrinter(a, prefix, stamps)
		out.list = list
		p := p
		p.ID = control.Name(id)
		_, err := c.Logs(ctx, p, func(piece control.Piece) error {
			printing.Lock()
			defer printing.Unlock()
			return out.piece(&piece)
		})
		printing.Lock()
		defer printing.Unlock()
		return errors.Join(err, out.end())
	}
	if !p.Follow {
		for _, id := range ids {
			err = errors.Join(err, one(id))
		}
		return err
	}
	if len(ids) > control.MaxStreams {
		return Usage("%d jobs are more than can be followed at once, which is %d; name fewer, or leave -f out", len(ids), control.MaxStreams)
	}
	errs := make([]error, len(ids))
	var streams sync.WaitGroup
	for i, id := range ids {
		streams.Go(func() { errs[i] = one(id) })
	}
	streams.Wait()
	return errors.Join(errs...)
}

// logPrinter prints the pieces of one job's output. With a prefix it keeps a line
// until it is whole, so that lines of several jobs do not mix.
type logPrinter struct {
	a      *App
	screen [2]screen // of standard output and standard error
	list   *array    // of JSON, nil if it is not wanted
	prefix string
	stamps bool
	fresh  bool   // what is printed next begins a line
	part   string // of a line that is kept
}

// maxPart bounds what is kept of a line, in bytes; a longer one is cut in two.
const maxPart = 64 << 10

// newLogPrinter makes one. A carriage return goes to a terminal as it is, unless it would have
// what stands before our lines overwritten.
func newLogPrinter(a *App, prefix string, stamps bool) *logPrinter {
	s := screen{a: a, to: a.Out, live: prefix == "" && !stamps}
	return &logPrinter{a: a, screen: [2]screen{s, s}, prefix: prefix, stamps: stamps, fresh: true}
}

func (l *logPrinter) piece(p *control.Piece) error {
	switch {
	case l.list != nil:
		return l.list.add(p)
	case l.a.Structured():
		return l.a.PrintJSON(p)
	}
	from := &l.screen[0]
	if p.Stream == "stderr" {
		from = &l.screen[1]
	}
	text := from.safe(p.String())
	if p.Dropped > 0 {
		text = from.rest() + fmt.Sprintf("[%d bytes of %s were not kept]\n", p.Dropped, p.Stream)
		if !l.fresh || l.part != "" {
			text = "\n" + text
		}
	}
	if l.prefix != "" {
		text = l.part + text
		whole := strings.LastIndexByte(text, '\n') + 1
		text, l.part = text[:whole], text[whole:]
		if len(l.part) > maxPart {
			text, l.part = text+l.part+"\n", ""
		}
	}
	return l.print(text, p.At)
}

func (l *logPrinter) print(text string, at control.Time) error {
	before := l.prefix
	if l.stamps {
		before += local2(at) + " "
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if l.fresh {
			b.WriteString(before)
		}
		b.WriteString(line)
		l.fresh = strings.HasSuffix(line, "\n")
	}
	_, err := l.a.Out.WriteString(b.String())
	return err
}

// end prints what was kept.
func (l *logPrinter) end() error {
	text := l.part + l.screen[0].rest() + l.screen[1].rest()
	if text == "" {
		return nil
	}
	if l.prefix != "" {
		text = l.prefix + text + "\n"
	}
	_, err := l.a.Out.WriteString(text)
	return err
}

func local2(t control.Time) string {
	return queue.Millis(t).Time().Local().Format("2006-01-02T15:04:05.000Z07:00")
}
