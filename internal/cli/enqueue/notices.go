package enqueue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/queue"
)

// WarnExpired warns that a job will not run because it has expired. The parameter unsaid is false if
// another message already says that.
func WarnExpired(o *term.Output, s *queue.Spec, unsaid bool) {
	if now := time.Now(); unsaid && present.HasExpired(s.ExpiresAt, now) {
		fmt.Fprintf(o.Stderr, "queuectl: warning: the job %s; to run it, set a later --expires-at\n",
			present.ExpiryText(s.ExpiresAt.Time(), now))
	}
}

// PrintUnique prints that a job was not enqueued because another job has its unique key.
func PrintUnique(o *term.Output, s *queue.Spec, id string, found bool) {
	if found && s.Unique != nil {
		fmt.Fprintf(o.Stderr, "queuectl: no job was enqueued, because job %s already has the unique key %s\n", id,
			o.Clean(o.Stderr, *s.Unique))
	}
}

// maxFoundListed is the highest number of jobs that PrintFound names.
const maxFoundListed = 10

// PrintFound prints which jobs were not enqueued because another job has the same unique key.
func PrintFound(o *term.Output, what string, places []int, total int) {
	if len(places) == 0 {
		return
	}
	slices.Sort(places)
	text := ""
	for i, at := range places {
		if i == maxFoundListed {
			text += termtext.LocaleText(", …")
			break
		}
		text += ", " + strconv.Itoa(at)
	}
	fmt.Fprintf(o.Stderr, "queuectl: %d of %s not enqueued (%s%s), because another job has the same unique key\n",
		len(places), present.Jobs(total), what, text[1:])
}

// PrintCancelled prints that a new job will not run, because a job that it depends on has not ended as
// required.
func PrintCancelled(o *term.Output, got *control.EnqueueResult) {
	if got.State != "" {
		fmt.Fprintf(o.Stderr, "queuectl: job %s was %s immediately: a job it depends on ended, but not with the required "+
			"result; details: queuectl why %s\n", got.ID, got.State, got.ID)
	}
}

// PrintNewQueues warns about queues that contain only the new jobs. The name of such a queue may be a
// typing error.
func PrintNewQueues(o *term.Output, list []control.NewQueue) {
	for _, q := range list {
		hint := ""
		if q.SimilarQueue != "" {
			hint = fmt.Sprintf("; did you mean %s?", q.SimilarQueue)
		}
		fmt.Fprintf(o.Stderr, "queuectl: queue %s is new (no other waiting or running jobs)%s\n", q.Queue, hint)
	}
}

// PrintNotes prints the notes of the service about new jobs.
func PrintNotes(o *term.Output, cmd *cobra.Command, notes []string) {
	if o.Quiet || o.Structured() {
		return
	}
	for _, note := range notes {
		if field, text, found := strings.Cut(note, ": "); found && input.FlagsByField(cmd)[field] != "" {
			note = input.FlagsByField(cmd)[field] + ": " + text
		}
		fmt.Fprintln(o.Stderr, "queuectl: "+o.Clean(o.Stderr, note))
	}
}

// WarnUnenforced prints a warning about limits that the machine does not enforce.
func WarnUnenforced(o *term.Output, names []string) {
	if len(names) == 0 {
		return
	}
	var parts []string
	if slices.Contains(names, "memory") {
		parts = append(parts, "the memory limit applies to each process of a job separately")
	}
	none := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "memory" })
	switch len(none) {
	case 0:
	case 1:
		parts = append(parts, "the limit "+none[0]+" is not enforced")
	default:
		parts = append(parts, "the limits "+strings.Join(none, " and ")+" are not enforced")
	}
	fmt.Fprintf(o.Stderr, "queuectl: warning: %s on this machine; see: queuectl doctor\n",
		o.Clean(o.Stderr, strings.Join(parts, ", and ")))
}
