package enqueue

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/queue"
)

// PrintEnqueued prints new jobs in the order of the request: their ids, or the jobs as JSON.
func PrintEnqueued(ctx context.Context, o *term.Output, c *control.Client, ids []string) error {
	if !o.Structured() {
		_, err := io.WriteString(o.Stdout, strings.Join(append(ids[:len(ids):len(ids)], ""), "\n"))
		return err
	}
	if err := PrintJobs(ctx, o, c, ids); err != nil {
		return notPrintedError{err}
	}
	return nil
}

// notPrintedError says that jobs are enqueued but could not be printed. It omits the advice in the cause,
// because the user must not repeat the command.
type notPrintedError struct{ cause error }

func (e notPrintedError) Error() string {
	cause, _, _ := strings.Cut(e.cause.Error(), "; ")
	return "the jobs are enqueued, but cannot be shown: " + cause +
		"; do not repeat the command, but use: queuectl list"
}

func (e notPrintedError) Unwrap() error { return e.cause }

// PrintJobs prints jobs as JSON: as one array, or one per line. It reads one page at a time, so its
// memory use is bounded. It omits jobs that were removed.
func PrintJobs(ctx context.Context, o *term.Output, c *control.Client, ids []string) error {
	out := bufio.NewWriter(o.Writer())
	list := term.NewJSONList(out, o.JSONL)
	for page := range slices.Chunk(ids, control.MaxSelectedPerRequest) {
		jobs, err := jobsByID(ctx, c, page)
		if err != nil {
			return err
		}
		for i := range jobs {
			if err := list.Add(&jobs[i]); err != nil {
				return err
			}
		}
	}
	list.End() // Flush returns an error of this write
	return out.Flush()
}

// jobsByID returns the jobs with these ids, in this order. The caller may pass at most
// control.MaxSelectedPerRequest ids. Jobs that were enqueued together are usually on one page of the list, so
// jobsByID first reads that page. It reads the remaining jobs one by one.
func jobsByID(ctx context.Context, c *control.Client, ids []string) ([]control.Job, error) {
	known := map[string]control.Job{}
	last, err := c.Show(ctx, control.Show{ID: control.JobID(ids[len(ids)-1])})
	switch {
	case err == nil:
		page, err := c.List(ctx, control.List{Cursor: strconv.FormatInt(last.Seq+1, 10), Limit: len(ids)})
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			known[page.Jobs[i].ID] = page.Jobs[i]
		}
	case !errors.Is(err, queue.ErrNotFound):
		return nil, err
	}
	var jobs []control.Job
	for _, id := range ids {
		job, ok := known[id]
		if !ok {
			one, err := c.Show(ctx, control.Show{ID: control.JobID(id)})
			if errors.Is(err, queue.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			job = one.Job
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}
